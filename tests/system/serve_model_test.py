"""The server with a real model behind it, through the official clients: what a script cannot show.

Constraints, log probabilities, seeds, cached prefixes, limits.
"""
import itertools
import json
import math
import unittest

import serve_process
from serve_process import Server, anthropic_client, need_clients, openai_client, user

need_clients()
import openai  # noqa: E402
import pydantic  # noqa: E402

CONTEXT = 1024
GREEDY = {"temperature": 0}
STORY = "Write a long story about the sea and the ships"


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=1, le=99)
    tags: list[bool] = pydantic.Field(max_length=2)


class Weather(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    unit: str = pydantic.Field(pattern="^(C|F)$")
    days: int = pydantic.Field(ge=1, le=7)


class Clock(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    utc: bool


TYPES = {"get_weather": Weather, "clock": Clock}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": kind.model_json_schema()}}
         for name, kind in TYPES.items()]
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
SCHEMA = {"type": "json_schema",
          "json_schema": {"name": "person", "schema": Person.model_json_schema()}}


def setUpModule():
    global server, client, think_end
    server = Server("--port", "0", "--thinking", "off", "--max-model-len", str(CONTEXT))
    unittest.addModuleCleanup(server.close)
    client = openai_client(server)
    with open(serve_process.MODEL + "/tokenizer.json", encoding="utf-8") as file:
        added = {token["content"]: token["id"] for token in json.load(file)["added_tokens"]}
    think_end = added["</think>"]


def ask(text, **options):
    return client.chat.completions.create(model="mini", messages=user(text),
                                          **{"max_tokens": 24, "seed": 5, **options})


def stream(text, **options):
    with ask(text, stream=True, **options) as chunks:
        return list(chunks)


def content_of(chunks):
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)


def thinking():
    """Reasoning that ends soon: the model was never taught to end it."""
    return {"extra_body": {"thinking": {"type": "enabled"}}, "logit_bias": {str(think_end): 20}}


class Constraints(unittest.TestCase):
    def test_json_schema(self):
        for more in ({}, {"temperature": 2}, {"n": 2}):
            with self.subTest(more=more):
                options = {"response_format": SCHEMA, "max_tokens": 200, **more}
                answer = ask("Who is it?", **options)
                for choice in answer.choices:
                    self.assertEqual(choice.finish_reason, "stop")
                    Person.model_validate_json(choice.message.content, strict=True)
                joined = "".join(c.delta.content for chunk in stream("Who is it?", **options)
                                 for c in chunk.choices if c.index == 0)
                self.assertEqual(joined, answer.choices[0].message.content)

    def test_parsed(self):
        """The helpers that make and check a schema themselves."""
        chat = client.chat.completions.parse(model="mini", messages=user("Who?"), max_tokens=200,
                                             response_format=Person)
        self.assertIsInstance(chat.choices[0].message.parsed, Person)
        response = client.responses.parse(model="mini", input="Who?", text_format=Person,
                                          max_output_tokens=200)
        self.assertIsInstance(response.output_parsed, Person)
        message = anthropic_client(server).messages.parse(
            model="mini", messages=user("Who?"), max_tokens=200, output_format=Person)
        self.assertIsInstance(message.parsed_output, Person)

    def test_json_schema_behind_reasoning(self):
        options = {"response_format": SCHEMA, "max_tokens": 300, **thinking()}
        message = ask("Who is it?", **options).choices[0].message
        Person.model_validate_json(message.content, strict=True)
        self.assertFalse(message.reasoning_content.startswith("{"))
        chunks = stream("Who is it?", **options)
        self.assertEqual(content_of(chunks), message.content)
        reasoning = "".join(getattr(c.delta, "reasoning_content", None) or ""
                            for chunk in chunks for c in chunk.choices)
        self.assertEqual(reasoning, message.reasoning_content)

    def test_json_object_and_guided(self):
        text = ask("json", response_format={"type": "json_object"}, max_tokens=300,
                   **GREEDY).choices[0].message.content
        self.assertTrue(text.startswith("{"), text)
        choice = ask("Which?", extra_body={"guided_choice": ["red", "green"]})
        self.assertIn(choice.choices[0].message.content, ("red", "green"))
        regex = ask("Which?", extra_body={"guided_regex": "[ab]{3}-[0-9]{2}"})
        self.assertRegex(regex.choices[0].message.content, r"\A[ab]{3}-[0-9]{2}\Z")
        response = client.responses.create(model="mini", input="Who?", max_output_tokens=200, text={
            "format": {"type": "json_schema", "name": "person",
                       "schema": Person.model_json_schema()}})
        Person.model_validate_json(response.output_text, strict=True)

    def test_bad_constraints_refuse_their_request_only(self):
        """While another answer goes on."""
        with ask("A story", max_tokens=400, stream=True,
                 extra_body={"ignore_eos": True}) as other:
            first = next(iter(other))
            for field, value in (("guided_regex", "("), ("guided_regex", "(?<=x)*"),
                                 ("guided_regex", "(" * 10_000),
                                 ("guided_grammar", "root ::= root"),
                                 ("guided_json", {"type": "bogus"}),
                                 ("guided_json", {"type": "integer", "minimum": 2, "maximum": 1}),
                                 ("response_format", {"type": "json_schema", "json_schema": {
                                     "name": "x", "schema": {"$ref": "http://example.com"}}})):
                with self.subTest(field=field, value=str(value)[:30]):
                    with self.assertRaises(openai.BadRequestError) as caught:
                        ask("x", extra_body={field: value})
                    self.assertGreater(len(caught.exception.body["message"]), 10)
            tokens = 1 + sum(1 for _ in other)
        self.assertEqual(first.choices[0].delta.role, "assistant")
        self.assertGreater(tokens, 50)


class Tools(unittest.TestCase):
    def check(self, calls):
        for call in calls:
            TYPES[call.function.name].model_validate_json(call.function.arguments, strict=True)

    def joined(self, chunks):
        calls = []
        for chunk in chunks:
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or []:
                    if call.id:
                        calls.append([call.function.name, ""])
                    calls[call.index][1] += call.function.arguments
        return calls

    def test_forced(self):
        """Named and required, strict and not, with reasoning and without."""
        named = {"type": "function", "function": {"name": "clock"}}
        question = "What is the weather?"
        for choice, tools, more in itertools.product(("required", named), (TOOLS, STRICT),
                                                     ({}, thinking())):
            with self.subTest(choice=choice, strict=tools is STRICT, thinking=bool(more)):
                options = {"tools": tools, "tool_choice": choice, "max_tokens": 160,
                           "parallel_tool_calls": False, **more}
                answer = ask(question, **options).choices[0]
                call, = answer.message.tool_calls
                if choice is named:
                    self.assertEqual(call.function.name, "clock")
                # What is not strict may have parameters without an end.
                if tools is STRICT or answer.finish_reason != "length":
                    self.assertEqual(answer.finish_reason, "tool_calls")
                    json.loads(call.function.arguments)
                if tools is STRICT:
                    self.check([call])
                self.assertEqual(bool(more), hasattr(answer.message, "reasoning_content"))
                self.assertEqual(answer.message.content, "")
                self.assertEqual(self.joined(stream(question, **options)),
                                 [[call.function.name, call.function.arguments]])

    def test_rounds(self):
        """Call, result, answer; the next request finds the last one's prompt in the cache."""
        messages = user("What is the weather? " + "Please. " * 40)
        cached = []
        for _ in range(3):
            answer = client.chat.completions.create(
                model="mini", messages=messages, tools=STRICT, tool_choice="required",
                max_tokens=200, seed=3, parallel_tool_calls=False)
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
            message = answer.choices[0].message
            self.check(message.tool_calls)
            messages += [message.model_dump(exclude_none=True)]
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"}
                         for call in message.tool_calls]
        self.assertEqual(sorted(cached), cached)
        self.assertGreater(cached[1], 0)

    def test_auto_and_none(self):
        answer = ask("Hello", tools=TOOLS)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length", "tool_calls"))
        answer = ask("Hello", tools=TOOLS, tool_choice="none")
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_messages(self):
        tools = [{"name": name, "input_schema": kind.model_json_schema(), "strict": True}
                 for name, kind in TYPES.items()]
        for choice in ({"type": "any", "disable_parallel_tool_use": True},
                       {"type": "tool", "name": "clock", "disable_parallel_tool_use": True}):
            with self.subTest(choice=choice):
                answer = anthropic_client(server).messages.create(
                    model="mini", messages=user("Weather?"), max_tokens=200, tools=tools,
                    tool_choice=choice)
                self.assertEqual(answer.stop_reason, "tool_use")
                block, = answer.content
                TYPES[block.name].model_validate(block.input, strict=True)

    def test_responses(self):
        tools = [{"type": "function", "name": name, "parameters": kind.model_json_schema(),
                  "strict": True} for name, kind in TYPES.items()]
        for choice in ("required", {"type": "function", "name": "clock"}):
            with self.subTest(choice=choice):
                answer = client.responses.create(model="mini", input="Weather?", tools=tools,
                                                 tool_choice=choice, max_output_tokens=200,
                                                 parallel_tool_calls=False)
                call, = answer.output
                TYPES[call.name].model_validate_json(call.arguments, strict=True)


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
        none = ask("Hello", max_tokens=2, logprobs=True).choices[0].logprobs.content
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
        def text(seed, **more):
            return ask("Tell me a story", seed=seed, **more).choices[0].message.content

        self.assertEqual(text(7), text(7))
        self.assertEqual(text(7, temperature=2), text(7, temperature=2))
        self.assertGreater(len({text(seed, temperature=2) for seed in range(4)}), 1)
        several = ask("Tell me a story", seed=7, n=3, temperature=2)
        self.assertGreater(len({choice.message.content for choice in several.choices}), 1)
        self.assertEqual(several.choices[0].message.content, text(7, temperature=2))
        self.assertGreater(len({ask("Tell me a story", seed=None, temperature=2)
                                .choices[0].message.content for _ in range(4)}), 1)

    def test_greedy_is_the_same_every_time_and_streamed(self):
        prompt = "Tell me about the sea. " * 8
        first = ask(prompt, **GREEDY)
        for i in range(6):
            with self.subTest(i=i):
                chunks = stream(prompt, stream_options={"include_usage": True}, **GREEDY)
                self.assertEqual(content_of(chunks), first.choices[0].message.content)
                self.assertEqual(chunks[-1].usage.completion_tokens, first.usage.completion_tokens)
                ask("Something else", max_tokens=3, temperature=2, seed=i)

    def test_stop_strings(self):
        whole = ask(STORY, **GREEDY).choices[0].message.content
        stop = whole[9:12]
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

        for i, turn in enumerate((chat, responses, messages_)):
            for stream in (False, True):
                with self.subTest(turn=turn.__name__, stream=stream):
                    messages = user(f"Turn {i} {stream}. " + "A long prompt that comes twice. " * 60)
                    key = "cache_read_input_tokens" if turn is messages_ else "cached_tokens"
                    self.assertLess(getattr(turn(messages, stream), key), 128)
                    messages += [{"role": "assistant", "content": "Yes."}, *user("And?")]
                    self.assertGreaterEqual(getattr(turn(messages, stream), key), 256)

    def test_salt(self):
        prompt = "A prompt of one tenant only. " * 60
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
        answer = client.chat.completions.create(model="mini", messages=user("word " * 950),
                                                extra_body={"ignore_eos": True})
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.total_tokens, CONTEXT)

    def test_token_ids(self):
        with self.assertRaises(openai.BadRequestError):
            client.completions.create(model="mini", prompt=[1, 1 << 30])


if __name__ == "__main__":
    unittest.main()
