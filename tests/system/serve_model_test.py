"""The server with a real model behind it, through the official clients: what a script cannot show.

Log probabilities, seeds, cached prefixes, limits.
"""
import itertools
import math
import unittest

from serve_process import (MODEL_FLAGS, Server, anthropic_client, need_clients, openai_client,
                           together, user)

need_clients()
import openai  # noqa: E402

CONTEXT = 512
GREEDY = {"temperature": 0}
STORY = "Write a long story about the sea and the ships"


def setUpModule():
    global server, client
    server = Server(*MODEL_FLAGS, "--max-model-len", str(CONTEXT))
    unittest.addModuleCleanup(server.close)
    client = openai_client(server)


def ask(text, **options):
    return client.chat.completions.create(model="mini", messages=user(text),
                                          **{"max_tokens": 24, "seed": 5, **options})


def stream(text, **options):
    with ask(text, stream=True, **options) as chunks:
        return list(chunks)


def content_of(chunks):
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)


class Sampling(unittest.TestCase):
    def test_logprobs(self):
        for more in (GREEDY, {}, {"temperature": 1.5}):
            with self.subTest(more=more):
                options = {"logprobs": True, "top_logprobs": 4, "max_tokens": 12, **more}
                answer = ask("Once upon a time", **options)
                entries = answer.choices[0].logprobs.content
                text = b"".join(bytes(entry.bytes) for entry in entries)
                self.assertEqual(text.decode().strip(), answer.choices[0].message.content.strip())
                for entry in entries:
                    self.assertEqual(len(entry.top_logprobs), 4)
                    ranked = [top.logprob for top in entry.top_logprobs]
                    self.assertEqual(sorted(ranked, reverse=True), ranked)
                    self.assertLessEqual(sum(map(math.exp, ranked)), 1.001)
                    self.assertLessEqual(entry.logprob, ranked[0])
                    if more is GREEDY:
                        self.assertEqual(entry.token, entry.top_logprobs[0].token)
                streamed = [entry for chunk in stream("Once upon a time", **options)
                            for choice in chunk.choices if choice.logprobs
                            for entry in choice.logprobs.content]
                self.assertEqual(streamed, entries)
        self.assertIsNone(ask("Hello", max_tokens=2).choices[0].logprobs)
        none = ask("Hello", max_tokens=2, logprobs=True,
                   extra_body={"ignore_eos": True}).choices[0].logprobs.content
        self.assertEqual([entry.top_logprobs for entry in none], [[], []])

    def test_logprobs_of_completions(self):
        answer = client.completions.create(model="mini", prompt="Once upon a time", logprobs=3,
                                           max_tokens=8, temperature=0)
        logprobs, text = answer.choices[0].logprobs, answer.choices[0].text
        self.assertEqual("".join(logprobs.tokens), text)
        for i, (token, offset) in enumerate(zip(logprobs.tokens, logprobs.text_offset)):
            self.assertEqual(text[offset:offset + len(token)], token)
            self.assertEqual(logprobs.token_logprobs[i], max(logprobs.top_logprobs[i].values()))
        with self.assertRaises(openai.BadRequestError) as caught:  # not without the reason
            client.completions.create(model="mini", prompt="x", echo=True, logprobs=1)
        self.assertEqual(caught.exception.param, "logprobs")

    def test_numbers_do_not_depend_on_the_cache(self):
        """Cached prompt or not, top 1 or top 5: the same text and log probabilities."""
        prompt = "Log probabilities of a cached prompt. " * 12
        seen = []
        for top in (1, 5, 5):
            answer = ask(prompt, logprobs=True, top_logprobs=top, **GREEDY)
            seen.append([(entry.token, entry.logprob) for entry in answer.choices[0].logprobs.content])
        self.assertGreater(answer.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(seen[1], seen[0])
        self.assertEqual(seen[2], seen[0])

    def test_seeds(self):
        def text(options):
            answer = ask("Tell me a story", **options)
            return [choice.message.content for choice in answer.choices]

        hot = {"temperature": 2, "max_tokens": 12}
        same, again, hot_same, *others, drawn, drawn_again, several = together(text, [
            {"seed": 7}, {"seed": 7}, {"seed": 7, **hot},
            *({"seed": seed, **hot} for seed in range(8)), {"seed": None, **hot}, {"seed": None, **hot},
            {"seed": 7, "n": 3, **hot}])
        self.assertEqual(same, again)
        self.assertEqual(hot_same, others[7])
        self.assertEqual(len({text for text, in others}), 8)
        self.assertNotEqual(drawn, drawn_again)
        self.assertEqual(several[:1], hot_same)
        self.assertEqual(len(set(several)), 3)

    def test_greedy_is_the_same_every_time_and_streamed(self):
        prompt = "Tell me about the sea. " * 4
        first = ask(prompt, **GREEDY)
        for i in range(3):
            with self.subTest(i=i):
                chunks = stream(prompt, stream_options={"include_usage": True}, **GREEDY)
                self.assertEqual(content_of(chunks), first.choices[0].message.content)
                self.assertEqual(chunks[-1].usage.completion_tokens, first.usage.completion_tokens)
                ask("Something else", max_tokens=3, temperature=2, seed=i)

    def test_stop_strings(self):
        whole = ask(STORY, **GREEDY).choices[0].message.content
        stop = whole[len(whole) // 2:][:3]
        options = {"stop": ["not to be found", stop], **GREEDY}
        stopped = ask(STORY, **options)
        self.assertEqual(stopped.choices[0].message.content, whole[:whole.index(stop)])
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertEqual(content_of(stream(STORY, **options)),
                         whole[:whole.index(stop)])
        answer = anthropic_client(server).messages.create(
            model="mini", messages=user(STORY), max_tokens=24, stop_sequences=[stop],
            extra_body=GREEDY)
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(answer.content[0].text, whole[:whole.index(stop)])

    def test_the_same_in_all_protocols(self):
        chat = ask("Hello there", **GREEDY)
        text = chat.choices[0].message.content
        response = client.responses.create(model="mini", input="Hello there", temperature=0,
                                           max_output_tokens=24)
        self.assertEqual(response.output_text, text)
        message = anthropic_client(server).messages.create(
            model="mini", messages=user("Hello there"), max_tokens=24, extra_body=GREEDY)
        self.assertEqual(message.content[0].text, text)
        self.assertEqual({chat.usage.completion_tokens, response.usage.output_tokens,
                          message.usage.output_tokens}, {chat.usage.completion_tokens})
        self.assertEqual({chat.usage.prompt_tokens, response.usage.input_tokens},
                         {message.usage.input_tokens + message.usage.cache_read_input_tokens})


class Cache(unittest.TestCase):
    def test_second_turn(self):
        """In every protocol, streamed and not."""
        def chat(messages, stream):
            options = {"model": "mini", "messages": messages, "max_tokens": 8}
            if not stream:
                return client.chat.completions.create(**options).usage.prompt_tokens_details
            *_, last = client.chat.completions.create(
                stream=True, stream_options={"include_usage": True}, **options)
            return last.usage.prompt_tokens_details

        def responses(messages, stream):
            options = {"model": "mini", "input": messages, "max_output_tokens": 8}
            if not stream:
                return client.responses.create(**options).usage.input_tokens_details
            *_, last = client.responses.create(stream=True, **options)
            return last.response.usage.input_tokens_details

        def messages_(messages, stream):
            options = {"model": "mini", "messages": messages, "max_tokens": 8}
            if not stream:
                return anthropic_client(server).messages.create(**options).usage
            with anthropic_client(server).messages.stream(**options) as events:
                return events.get_final_message().usage

        def cached_in_turns(kind):
            turn, stream = kind
            key = "cache_read_input_tokens" if turn is messages_ else "cached_tokens"
            messages = user(f"{turn.__name__} {stream}. " + "A prompt that comes twice. " * 30)
            first = getattr(turn(messages, stream), key)
            messages += [{"role": "assistant", "content": "Yes."}, *user("And?")]
            return first, getattr(turn(messages, stream), key)

        kinds = list(itertools.product((chat, responses, messages_), (False, True)))
        for (turn, stream), (first, second) in zip(kinds, together(cached_in_turns, kinds)):
            with self.subTest(turn=turn.__name__, stream=stream):
                self.assertEqual(first, 0)
                self.assertGreaterEqual(second, 128)

    def test_salt(self):
        prompt = "A prompt of one tenant only. " * 25
        def cached(salt):
            usage = ask(prompt, max_tokens=1, extra_body={"cache_salt": salt}).usage
            return usage.prompt_tokens_details.cached_tokens
        self.assertEqual(cached("a"), 0)
        self.assertEqual(cached("b"), 0)
        self.assertGreater(cached("a"), 0)


class Limits(unittest.TestCase):
    def prompt(self, tokens):
        return [100] * tokens

    def complete(self, tokens, **options):
        return client.completions.create(model="mini", prompt=self.prompt(tokens), **options)

    def test_context(self):
        """A prompt may leave room for one token, not less; without max_tokens what is left."""
        self.assertEqual(self.complete(CONTEXT - 1, max_tokens=1).usage.completion_tokens, 1)
        for tokens, asked in ((CONTEXT, 1), (CONTEXT + 1, 1), (CONTEXT - 1, 2), (3, 1 << 31),
                              (3, (1 << 63) - 1)):
            with self.subTest(tokens=tokens, asked=asked):
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.complete(tokens, max_tokens=asked)
                self.assertEqual(caught.exception.code, "context_length_exceeded")
                for number in (tokens, asked, CONTEXT):
                    self.assertIn(str(number), caught.exception.message)
        answer = client.chat.completions.create(model="mini", messages=user("word " * (CONTEXT - 70)),
                                                extra_body={"ignore_eos": True})
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.total_tokens, CONTEXT)

    def test_token_ids(self):
        with self.assertRaises(openai.BadRequestError):
            client.completions.create(model="mini", prompt=[1, 1 << 30])


if __name__ == "__main__":
    unittest.main()
