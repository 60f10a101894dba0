"""What a model may write, streamed and whole, cut at every place, as /v1/chat/completions.

The server is scripted: a prompt says what is answered.
"""
import asyncio
import json
import unittest

from serve_answers import REASONING, THINK, TOOLS, Joined, whole
from serve_process import SOURCE, Server, cases, dsml, need_clients, openai_client, user

need_clients()


def setUpModule():
    global server, client
    server = Server("--scripted", "0", "--port", "0", "--thinking", "off",
                    "--max-model-len", "2048")
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


    def test_names_that_mean_something(self):
        """User case 50."""
        def tool(*names):
            properties = {name: {} for name in names}
            return [{"type": "function", "function": {"name": "f", "parameters": {
                "type": "object", "properties": properties}}}]

        call = {"city": "Oslo", "days": 2}
        for name, tools, parameters, expected in (
                ("a wrapper that the schema lacks", tool("city"), {"arguments": call}, call),
                ("a parameter of that name", tool("arguments"), {"arguments": call},
                 {"arguments": call}),
                ("a wrapper beside others", tool("city"), {"arguments": call, "city": "Rome"},
                 {"arguments": call, "city": "Rome"}),
                ("digits in a string", tool("city"), {"city": "123"}, {"city": "123"}),
                ("an object", tool("more"), {"more": {"a": 1}}, {"more": {"a": 1}})):
            with self.subTest(name):
                text = "say: " + dsml(["f", parameters])
                answer = whole(ask(text, tools=tools))
                (name, arguments), = answer.calls
                self.assertEqual(json.loads(arguments), expected)
                with ask(text, tools=tools, stream=True) as chunks:
                    self.assertEqual(Joined(chunks), answer)
        for tools in ([], tool("city")):
            with self.subTest(tools=tools):
                more = {"tools": tools} if tools else {}
                with ask("say: it is 2 <", stream=True, **more) as chunks:
                    joined = Joined(chunks)
                self.assertEqual((joined.content, joined.finish), ("it is 2 <", "stop"))
                self.assertEqual(whole(ask("say: it is 2 <", **more)), joined)


if __name__ == "__main__":
    unittest.main()
