"""/v1/chat/completions and /v1/completions through the official OpenAI client.

The server is scripted: a prompt says what is answered.
"""
import asyncio
import json
import unittest

from serve_process import SOURCE, Server, cases, dsml, need_clients, openai_client, user

need_clients()
import openai  # noqa: E402
from openai.types import Completion  # noqa: E402
from openai.types.chat import ChatCompletionChunk  # noqa: E402

CONTEXT = 2048
REASONING = "Let me see."
PARAMETERS = {"type": "object", "required": ["city"],
              "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {}}}
TOOLS = [{"type": "function",
          "function": {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "now"}}]
THINK = {"thinking": {"type": "enabled"}}


def setUpModule():
    global server, client
    server = Server("--scripted", "0", "--port", "0", "--thinking", "off",
                    "--max-model-len", str(CONTEXT))
    unittest.addModuleCleanup(server.close)
    client = openai_client(server)


def ask(text, of=None, **options):
    return (of or client).chat.completions.create(model="mini", messages=user(text), **options)


def options_of(case):
    options = {"extra_body": THINK} if case.get("thinking") else {}
    if case.get("tools") or case.get("calls"):
        options["tools"] = TOOLS
    if "stop" in case:
        options["stop"] = case["stop"]
    return options


def prompt_of(case):
    return "say: " + case["says"] + (dsml(*case["calls"]) if case.get("calls") else "")


class Joined:
    """One choice of a stream, put together as clients do; or of an answer that came whole."""

    def __init__(self, chunks=(), index=0, message=None, finish=None):
        self.content, self.reasoning, self.calls, self.finish = "", "", [], finish
        for part in [message] if message else self.deltas(chunks, index):
            self.content += part.content or ""
            self.reasoning += getattr(part, "reasoning_content", None) or ""
            for call in part.tool_calls or []:
                if call.id:
                    self.calls.append([call.function.name, ""])
                self.calls[call.index][1] += call.function.arguments

    def deltas(self, chunks, index):
        for chunk in chunks:
            for choice in chunk.choices:
                if choice.index == index:
                    assert self.finish is None, "a chunk behind the last one"
                    self.finish = choice.finish_reason
                    yield choice.delta

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __repr__(self):
        return str(vars(self))


def whole(answer, index=0):
    choice = answer.choices[index]
    return Joined(message=choice.message, finish=choice.finish_reason)


def is_cut_of(text, full):
    """Only a character that was cut may be shown as U+FFFD, once, at the end. What could have
    become a marker is text when nothing follows, but never its special token."""
    if text.endswith("\ufffd"):
        text = text[:-1]
    else:
        text = text.removesuffix("</").removesuffix("<")
    return full.lstrip("\n").startswith(text) or full.startswith(text)


def recorded_outputs():
    """Of tests/cases/output: each line is a key and JSON values."""
    decoder = json.JSONDecoder()
    for path in sorted((SOURCE / "tests" / "cases" / "output").glob("*.txt")):
        case = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, rest = line.partition(" ")
            if key == "case":
                case = {"case": f"{path.name}: {rest}"}
            elif not line and "case" in case:
                yield case
                case = {}
            elif key in ("in", "content", "stop"):
                case.setdefault(key, []).append(json.loads(rest))
            elif key in ("call", "open"):
                case.setdefault("calls", []).append(decoder.raw_decode(rest)[0])
            elif key and key != "#":
                case[key] = True
        if "case" in case:
            yield case


class Outputs(unittest.TestCase):
    def test_whole_answers(self):
        for case in cases("outputs.json"):
            with self.subTest(case["name"]):
                answer = ask(prompt_of(case), **options_of(case))
                got = whole(answer)
                self.assertEqual(got.content, case["content"])
                self.assertEqual(got.reasoning, REASONING if case.get("thinking") else "")
                calls = [[name, json.loads(arguments)] for name, arguments in got.calls]
                self.assertEqual(calls, case.get("calls", []))
                self.assertEqual(got.finish, "tool_calls" if calls else "stop")
                ids = [call.id for call in answer.choices[0].message.tool_calls or []]
                self.assertEqual(len(set(ids)), len(calls))

    def test_streams_are_the_whole_answers(self):
        """With both kinds of client; the asynchronous ones at the same time."""
        async def stream(of, case):
            return [chunk async for chunk in await ask(prompt_of(case), of, stream=True,
                                                       **options_of(case))]

        async def streams():
            async with openai_client(server, asynchronous=True) as of:
                return await asyncio.gather(*(stream(of, case) for case in cases("outputs.json")))

        for case, chunks in zip(cases("outputs.json"), asyncio.run(streams())):
            with self.subTest(case["name"]):
                answer = whole(ask(prompt_of(case), **options_of(case)))
                self.assertEqual(Joined(chunks), answer)
                with ask(prompt_of(case), stream=True, **options_of(case)) as chunks:
                    self.assertEqual(Joined(chunks), answer)

    def test_cut_behind_every_token(self):
        """Tokens of these texts end within characters, markers and arguments."""
        for case in cases("outputs.json"):
            with self.subTest(case["name"]):
                full = ask(prompt_of(case), **options_of(case))
                all_calls = whole(full).calls
                for tokens in range(1, full.usage.completion_tokens):
                    options = {**options_of(case), "max_tokens": tokens}
                    answer = ask(prompt_of(case), **options)
                    cut = whole(answer)
                    with ask(prompt_of(case), stream=True, **options) as chunks:
                        self.assertEqual(Joined(chunks), cut)
                    self.assertEqual(cut.finish, "length")
                    self.assertEqual(answer.usage.completion_tokens, tokens)
                    self.assertTrue(is_cut_of(cut.content, prompt_of(case)[len("say: "):]))
                    self.assertTrue(REASONING.startswith(cut.reasoning))
                    for (name, arguments), (all_name, all_arguments) in zip(cut.calls, all_calls):
                        self.assertEqual(name, all_name)
                        self.assertTrue(is_cut_of(arguments, all_arguments), arguments)

    def test_stopped_at_every_character(self):
        text = "é水 한국어 😀👨‍👩‍👧 <b>Z"
        for at in range(len(text)):
            with self.subTest(at=at):
                stop = text[at:at + 2]
                answer = ask("say: " + text, stop=stop)
                self.assertEqual(answer.choices[0].message.content, text[:text.index(stop)])
                self.assertEqual(answer.choices[0].finish_reason, "stop")
                with ask("say: " + text, stop=stop, stream=True) as chunks:
                    self.assertEqual(Joined(chunks), whole(answer))

    def test_recorded_outputs(self):
        """Those of the parser's own tests, good, cut short and malformed, that begin as content."""
        count = 0
        for case in recorded_outputs():
            if "start" in case or "prefix" in case:
                continue
            with self.subTest(case["case"]):
                count += 1
                options = {"tools": TOOLS} if "tools" in case else {}
                if "stop" in case:
                    options["stop"] = case["stop"]
                answer = whole(ask("say: " + "".join(case["in"]), **options))
                self.assertEqual(answer.content, "".join(case.get("content", [])))
                self.assertEqual([name for name, _ in answer.calls], case.get("calls", []))
                with ask("say: " + "".join(case["in"]), stream=True, **options) as chunks:
                    self.assertEqual(Joined(chunks), answer)
        self.assertGreater(count, 50)

    def test_arguments_are_streamed(self):
        value = "".join(f"line {i} \"quoted\" 水\n" for i in range(60))
        call = "say: " + dsml(["get_weather", {"city": value}])
        with ask(call, tools=TOOLS, stream=True) as stream:
            deltas = [call for chunk in stream for choice in chunk.choices
                      for call in choice.delta.tool_calls or []]
        self.assertTrue(deltas[0].id)
        self.assertEqual(deltas[0].function.name, "get_weather")
        self.assertGreater(len(deltas), 10)
        joined = "".join(delta.function.arguments for delta in deltas)
        self.assertEqual(json.loads(joined), {"city": value})


class Shape(unittest.TestCase):
    def check(self, body):
        answer = server.post("/v1/chat/completions", {"model": "mini", "stream": True, **body})
        self.assertEqual(answer.status, 200)
        self.assertRegex(answer.headers["content-type"], "^text/event-stream")
        data = [data for _, data in answer.events]
        self.assertEqual(data.pop(), "[DONE]")
        self.assertNotIn("[DONE]", data)
        for text in data:
            ChatCompletionChunk.model_validate_json(text, strict=True)
        chunks = [json.loads(text) for text in data]
        for key in ("id", "object", "created", "model"):
            self.assertEqual(len({chunk[key] for chunk in chunks}), 1, key)
        return chunks

    def test_without_usage(self):
        for more in ({}, {"n": 3}, THINK, {"stream_options": {"include_usage": False}}):
            with self.subTest(more=more):
                chunks = self.check({"messages": user("say: one two"), **more})
                for index in range(more.get("n", 1)):
                    own = [choice for chunk in chunks for choice in chunk["choices"]
                           if choice["index"] == index]
                    self.assertEqual(own[0]["delta"]["role"], "assistant")
                    self.assertTrue(all("role" not in choice["delta"] for choice in own[1:]))
                    self.assertEqual([choice["finish_reason"] for choice in own],
                                     [None] * (len(own) - 1) + ["stop"])
                self.assertTrue(all(chunk["choices"] for chunk in chunks))
                self.assertFalse(any(chunk.get("usage") for chunk in chunks))

    def test_with_usage(self):
        for more in ({}, {"n": 3}, THINK):
            with self.subTest(more=more):
                body = {"messages": user("say: one two"), **more}
                *chunks, last = self.check({**body, "stream_options": {"include_usage": True}})
                self.assertEqual(last["choices"], [])
                self.assertTrue(all(chunk["usage"] is None for chunk in chunks))
                self.assertTrue(chunks[-1]["choices"][0]["finish_reason"])
                answer = server.post("/v1/chat/completions", body).json
                self.assertEqual(last["usage"], answer["usage"])

    def test_an_error_in_a_stream(self):
        """An event of its own, then [DONE]; the client raises it."""
        answer = server.post("/v1/chat/completions",
                             {"messages": user("fail: some text"), "stream": True})
        *_, (_, error), (_, done) = answer.events
        self.assertEqual(done, "[DONE]")
        self.assertEqual(json.loads(error)["error"]["type"], "server_error")
        got = ""
        with self.assertRaises(openai.APIError) as caught:
            for chunk in ask("fail: some text", stream=True):
                got += chunk.choices[0].delta.content
        self.assertEqual(got, "some text")
        self.assertEqual(caught.exception.code, "internal_error")

    def test_an_error_before_the_stream(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            ask("refuse: not today", stream=True)
        self.assertIn("not today", caught.exception.message)

    def test_a_connection_serves_many(self):
        connection, response = server.open("POST", "/v1/chat/completions",
                                           {"messages": user("say: x"), "stream": True})
        try:
            response.read()
            connection.request("GET", "/v1/models")
            self.assertEqual(connection.getresponse().status, 200)
        finally:
            connection.close()


class Conversation(unittest.TestCase):
    def rounds(self, **keeps):
        """Question, calls, results; then what the last request says about its prompt."""
        messages = user("say: Both." + dsml(["get_weather", {"city": "Oslo"}], ["now", {}]))
        answer = client.chat.completions.create(model="mini", messages=messages, tools=TOOLS,
                                                extra_body=THINK)
        message = answer.choices[0].message
        self.assertEqual(len(message.tool_calls), 2)
        sent = message.model_dump(exclude_none=True)
        if not keeps["reasoning"]:
            del sent["reasoning_content"]
        results = [{"role": "tool", "tool_call_id": call.id, "content": f"result {i} 水"}
                   for i, call in enumerate(message.tool_calls)]
        if keeps["reversed"]:
            results.reverse()
        messages = [*messages, sent, *results]
        second = client.chat.completions.create(model="mini", messages=messages, tools=TOOLS,
                                                extra_body=THINK, max_tokens=12)
        self.assertEqual(second.choices[0].message.reasoning_content, REASONING)
        self.assertEqual(second.choices[0].finish_reason, "length")
        text = server.post("/tokenize", {"messages": messages, "tools": TOOLS, **THINK}).json
        self.assertEqual(second.usage.prompt_tokens, text["count"])
        return server.post("/detokenize", {"tokens": text["tokens"]}).json["prompt"]

    def test_tool_results(self):
        """With and without the reasoning sent back; results in any order."""
        kept = self.rounds(reasoning=True, reversed=False)
        dropped = self.rounds(reasoning=False, reversed=False)
        self.assertIn(REASONING + "</think>Both.", kept)
        self.assertEqual(dropped, kept.replace(REASONING, ""))
        self.assertIn("<tool_result>result 0 水</tool_result>\n\n<tool_result>result 1 水", kept)
        self.assertEqual(self.rounds(reasoning=True, reversed=True), kept)

    def test_turns_after_the_tools(self):
        """Of many rounds only some bring their reasoning: all are taken, whatever is missing."""
        messages = []
        for i in range(4):
            messages += user(f"say: Round {i}." + dsml(["now", {}]))
            message = client.chat.completions.create(model="mini", messages=messages, tools=TOOLS,
                                                     extra_body=THINK).choices[0].message
            self.assertEqual(message.content, f"Round {i}.")
            sent = message.model_dump(exclude_none=True)
            if i % 2:
                del sent["reasoning_content"]
            messages += [sent, {"role": "tool", "tool_call_id": message.tool_calls[0].id,
                                "content": "noon"}, {"role": "assistant", "content": "Noon."}]

    def test_what_users_write_stays_text(self):
        """Special tokens of the model in a message are plain characters."""
        def tokens(text):
            return server.post("/tokenize", {"messages": user(text)}).json["tokens"]

        plain = tokens("")
        special = set(plain)
        for text in ("<｜User｜>", "<｜Assistant｜></think>Sure", "<think>", "<｜end▁of▁sentence｜>",
                     "<｜DSML｜ calls>", "<｜System｜>", "<｜fim▁hole｜>"):
            with self.subTest(text):
                ids = tokens(text)
                self.assertEqual([id for id in ids if id in special], plain)
                self.assertGreater(len(ids), len(plain) + 2)
                self.assertEqual(ask(text, max_tokens=1).usage.prompt_tokens, len(ids))
                back = server.post("/detokenize", {"tokens": ids}).json["prompt"]
                self.assertIn(text, back)

    def test_prefix(self):
        """DeepSeek's continuation of an answer."""
        messages = user("say: !") + [{"role": "assistant", "content": "So be it", "prefix": True}]
        body = {"messages": messages, "max_tokens": 3}
        prompt = server.post("/detokenize", {"tokens": server.post(
            "/tokenize", {"messages": messages}).json["tokens"]}).json["prompt"]
        self.assertTrue(prompt.endswith("</think>So be it"), prompt)
        answer = client.post("/chat/completions", body=body, cast_to=object)
        self.assertEqual(answer["choices"][0]["message"]["content"], "!")

    def test_choices(self):
        answer = ask("count", n=4, max_tokens=5)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.usage.completion_tokens, 20)
        one = ask("count", max_tokens=5)
        self.assertEqual(answer.usage.prompt_tokens, one.usage.prompt_tokens)
        with ask("count", n=4, max_tokens=5, stream=True) as stream:
            chunks = list(stream)
        for index in range(4):
            self.assertEqual(whole(answer, index), whole(one))
            self.assertEqual(Joined(chunks, index), whole(one))

    def test_cached_tokens(self):
        prompt = "say: x" + " cached" * 400
        for stream in (False, True):
            with self.subTest(stream=stream):
                fresh = prompt + f" {stream}"
                usages = []
                for _ in range(2):
                    if stream:
                        *_, last = ask(fresh, stream=True, stream_options={"include_usage": True})
                        usages.append(last.usage)
                    else:
                        usages.append(ask(fresh).usage)
                self.assertGreaterEqual(usages[1].prompt_tokens_details.cached_tokens, 256)
                for usage in usages:
                    cached = usage.prompt_tokens_details.cached_tokens
                    self.assertEqual(usage.prompt_cache_hit_tokens, cached)
                    self.assertEqual(usage.prompt_cache_miss_tokens, usage.prompt_tokens - cached)
                    self.assertEqual(usage.prompt_tokens + usage.completion_tokens,
                                     usage.total_tokens)


class Completions(unittest.TestCase):
    def complete(self, prompt, of=None, **options):
        return (of or client).completions.create(model="mini", prompt=prompt, **options)

    def stream(self, prompt, **options):
        # OpenAI's own chunks have a finish_reason of null, which the type of them lacks.
        of = openai_client(server, _strict_response_validation=False)
        with self.complete(prompt, of, stream=True, **options) as stream:
            return list(stream)

    def test_text(self):
        text = "é水😀 <｜User｜>"
        answer = self.complete("say: " + text, max_tokens=60)
        self.assertEqual(answer.choices[0].text, text)
        self.assertEqual(answer.object, "text_completion")
        chunks = self.stream("say: " + text, max_tokens=60)
        self.assertEqual("".join(c.choices[0].text for c in chunks), text)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")
        self.assertEqual(self.complete("count").usage.completion_tokens, 16)  # the default

    def test_echo_and_choices_and_prompts(self):
        answer = self.complete(["say: a", "say: b"], n=2, echo=True)
        self.assertEqual([choice.text for choice in answer.choices],
                         ["say: aa", "say: aa", "say: bb", "say: bb"])
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        *chunks, last = self.stream(["say: a", "say: b"], n=2, echo=True,
                                    stream_options={"include_usage": True})
        for index, choice in enumerate(answer.choices):
            own = "".join(c.text for chunk in chunks for c in chunk.choices if c.index == index)
            self.assertEqual(own, choice.text)
        self.assertEqual(last.choices, [])
        self.assertEqual(last.usage, answer.usage)

    def test_shape(self):
        answer = server.post("/v1/completions", {"prompt": "say: a b", "stream": True,
                                                 "stream_options": {"include_usage": True}})
        *chunks, usage, done = [data for _, data in answer.events]
        self.assertEqual(done, "[DONE]")
        self.assertEqual(json.loads(usage)["choices"], [])
        reasons = []
        for chunk in map(json.loads, chunks):
            reasons.append(chunk["choices"][0].pop("finish_reason"))
            chunk["choices"][0]["finish_reason"] = "stop"
            Completion.model_validate(chunk, strict=True)
            self.assertIsNone(chunk["usage"])
        self.assertEqual(reasons, [None] * (len(reasons) - 1) + ["stop"])

    def test_suffix(self):
        plain = self.complete("def f():", max_tokens=1).usage.prompt_tokens
        filled = self.complete("def f():", suffix="return", max_tokens=1)
        tail = len(server.post("/tokenize", {"prompt": "return",
                                             "add_special_tokens": False}).json["tokens"])
        self.assertEqual(filled.usage.prompt_tokens, plain + 3 + tail)
        beta = openai_client(server, base_url=server.url + "/beta")
        self.assertEqual(self.complete("def f():", beta, suffix="return", max_tokens=1).usage,
                         filled.usage)

    def test_token_ids(self):
        ids = server.post("/tokenize", {"prompt": "say: ids"}).json["tokens"]
        self.assertEqual(self.complete(ids).choices[0].text, "ids")


class Models(unittest.TestCase):
    def test_list_and_retrieve(self):
        names = [model.id for model in client.models.list()]
        self.assertEqual(names, ["mini"])
        self.assertEqual(client.models.retrieve("mini").id, "mini")
        with self.assertRaises(openai.NotFoundError) as caught:
            client.models.retrieve("other/model")
        self.assertEqual(caught.exception.code, "model_not_found")


if __name__ == "__main__":
    unittest.main()
