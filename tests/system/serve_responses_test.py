"""/v1/responses through the official OpenAI client. The server is scripted."""
import asyncio
import json
import typing
import unittest

from serve_process import Server, cases, dsml, need_clients, openai_client, user

need_clients()
import openai  # noqa: E402
import pydantic  # noqa: E402
from openai.types import responses as types  # noqa: E402

REASONING = "Let me see."
TOOLS = [{"type": "function", "name": "get_weather", "strict": False,
          "parameters": {"type": "object", "required": ["city"], "properties": {
              "city": {"type": "string"}, "days": {"type": "integer"}, "more": {}}}},
         {"type": "function", "name": "now", "strict": False,
          "parameters": {"type": "object", "properties": {}}}]
EVENT = pydantic.TypeAdapter(typing.get_args(types.ResponseStreamEvent)[0])


def setUpModule():
    global server, client
    server = Server("--scripted", "0", "--port", "0", "--thinking", "off", "--max-model-len", "4096")
    unittest.addModuleCleanup(server.close)
    client = openai_client(server)


def ask(text, of=None, **options):
    return (of or client).responses.create(model="mini", input=text, **options)


def options_of(case):
    options = {"reasoning": {"effort": "low"}} if case.get("thinking") else {}
    if case.get("tools") or case.get("calls"):
        options["tools"] = TOOLS
    if "stop" in case:
        options["extra_body"] = {"stop": case["stop"]}
    return options


def prompt_of(case):
    return "say: " + case["says"] + (dsml(*case["calls"]) if case.get("calls") else "")


def parts(response):
    """Reasoning, text and calls of a response."""
    reasoning, calls = "", []
    for item in response.output:
        if item.type == "reasoning":
            reasoning += "".join(part.text for part in item.content)
        elif item.type == "function_call":
            calls.append([item.name, json.loads(item.arguments)])
    return reasoning, response.output_text, calls


class Answers(unittest.TestCase):
    def test_whole_answers(self):
        for case in cases("outputs.json"):
            with self.subTest(case["name"]):
                answer = ask(prompt_of(case), **options_of(case))
                self.assertEqual(answer.status, "completed")
                reasoning = REASONING if case.get("thinking") else ""
                self.assertEqual(parts(answer), (reasoning, case["content"], case.get("calls", [])))
                usage = answer.usage
                self.assertEqual(usage.input_tokens + usage.output_tokens, usage.total_tokens)
                self.assertGreaterEqual(usage.output_tokens,
                                        usage.output_tokens_details.reasoning_tokens)
                self.assertEqual(bool(reasoning), usage.output_tokens_details.reasoning_tokens > 0)

    def test_streams_are_the_whole_answers(self):
        async def stream(of, case):
            return [event async for event in await ask(prompt_of(case), of, stream=True,
                                                       **options_of(case))]

        async def streams():
            async with openai_client(server, asynchronous=True) as of:
                return await asyncio.gather(*(stream(of, case) for case in cases("outputs.json")))

        for case, events in zip(cases("outputs.json"), asyncio.run(streams())):
            with self.subTest(case["name"]):
                answer = ask(prompt_of(case), **options_of(case))
                self.assertEqual(parts(events[-1].response), parts(answer))
                self.assertEqual(events[-1].response.usage.output_tokens, answer.usage.output_tokens)
                text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
                self.assertEqual(text, case["content"])
                self.check_order(events)

    def check_order(self, events):
        """Every item and part opens, grows and closes in turn; what closes tells what came."""
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual([event.type for event in events[:2]],
                         ["response.created", "response.in_progress"])
        self.assertEqual(events[-1].type, "response.completed")
        items, open_item, open_part, text, closed_text = [], None, None, "", None
        for event in events[2:-1]:
            kind = event.type.removeprefix("response.")
            self.assertEqual(event.output_index,
                             len(items) if kind == "output_item.added" else len(items) - 1)
            if kind == "output_item.added":
                self.assertIsNone(open_item)
                open_item, text, closed_text = event.item, "", None
                items.append(event.item)
                self.assertEqual(event.item.status, "in_progress")
            elif kind == "output_item.done":
                self.assertIsNone(open_part)
                self.assertEqual(event.item.id, open_item.id)
                self.assertEqual(event.item.type, open_item.type)
                self.assertEqual(event.item.status, "completed")
                self.assertEqual(closed_text, text)
                items[-1], open_item = event.item, None
            else:
                self.assertEqual(event.item_id, open_item.id)
                if kind == "content_part.added":
                    self.assertIsNone(open_part)
                    open_part = event.part
                elif kind == "content_part.done":
                    self.assertEqual(event.part.type, open_part.type)
                    self.assertEqual(event.part.text, text)
                    open_part = None
                elif kind.endswith(".delta"):
                    self.assertIsNone(closed_text)
                    self.assertEqual(open_part is None, open_item.type == "function_call")
                    text += event.delta
                else:
                    self.assertTrue(kind.endswith(".done"), kind)
                    closed_text = getattr(event, "text", None)
                    if closed_text is None:
                        closed_text = event.arguments
                if open_item.type != "function_call":
                    self.assertEqual(event.content_index, 0)
        self.assertIsNone(open_item)
        self.assertEqual([item.model_dump() for item in events[-1].response.output],
                         [item.model_dump() for item in items])

    def test_every_event_has_its_type(self):
        """Strictly, as the client's types have it; names in `event:` and `type` are the same."""
        answer = server.post("/v1/responses", {
            "input": "say: Both." + dsml(["get_weather", {"city": "Oslo"}], ["now", {}]),
            "tools": TOOLS, "reasoning": {"effort": "low"}, "stream": True})
        seen = []
        for name, data in answer.events:
            self.assertEqual(EVENT.validate_json(data).type, name)
            seen.append(name.removeprefix("response."))
        distinct = [name for i, name in enumerate(seen) if i == 0 or seen[i - 1] != name]
        call = ["output_item.added", "function_call_arguments.delta",
                "function_call_arguments.done", "output_item.done"]

        def part(kind):
            return ["output_item.added", "content_part.added", kind + ".delta", kind + ".done",
                    "content_part.done", "output_item.done"]

        self.assertEqual(distinct, ["created", "in_progress", *part("reasoning_text"),
                                    *part("output_text"), *call, *call, "completed"])

    def test_the_stream_helper(self):
        with client.responses.stream(model="mini", input="say: Hello 水") as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            self.assertEqual("".join(deltas), "Hello 水")
            self.assertEqual(stream.get_final_response().output_text, "Hello 水")

    def test_cut_short(self):
        for tools in ([], TOOLS):
            with self.subTest(tools=bool(tools)):
                text = "say: " + (dsml(["get_weather", {"city": "Oslo" * 20}]) if tools else "one " * 40)
                answer = ask(text, max_output_tokens=40, tools=tools)
                self.assertEqual(answer.status, "incomplete")
                self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")
                self.assertEqual(answer.output[-1].status, "incomplete")
                *_, last = ask(text, max_output_tokens=40, tools=tools, stream=True)
                self.assertEqual(last.type, "response.incomplete")
                self.assertEqual(last.response.output[-1].status, "incomplete")

    def test_failures(self):
        with self.assertRaises(openai.InternalServerError):
            ask("fail: some text")
        *_, delta, _, _, last = ask("fail: text", stream=True)
        self.assertEqual(last.type, "response.failed")
        self.assertEqual(last.response.status, "failed")
        self.assertTrue(last.response.error.code)
        with self.assertRaises(openai.BadRequestError):
            ask("refuse: no", stream=True)


class Conversation(unittest.TestCase):
    def test_rounds(self):
        """Output items come back as input, with the reasoning and without."""
        items = user("say: Both." + dsml(["get_weather", {"city": "Oslo"}], ["now", {}]))
        first = client.responses.create(model="mini", input=items, tools=TOOLS,
                                        reasoning={"effort": "low"})
        self.assertEqual([item.type for item in first.output],
                         ["reasoning", "message", "function_call", "function_call"])
        self.assertEqual([item.phase for item in first.output if item.type == "message"],
                         ["commentary"])
        prompts = []
        for keeps in (True, False):
            sent = [item.model_dump(exclude_none=True) for item in first.output
                    if keeps or item.type != "reasoning"]
            results = [{"type": "function_call_output", "call_id": item.call_id, "output": "12"}
                       for item in first.output if item.type == "function_call"]
            second = client.responses.create(model="mini", input=[*items, *sent, *results],
                                             tools=TOOLS, max_output_tokens=9,
                                             reasoning={"effort": "low"})
            prompts.append(second.usage.input_tokens)
        self.assertGreater(prompts[0], prompts[1])

        # It is the prompt that Chat would have.
        chat = user(items[0]["content"]) + [
            {"role": "assistant", "content": "Both.", "reasoning_content": REASONING, "tool_calls": [
                {"id": item.call_id, "type": "function",
                 "function": {"name": item.name, "arguments": item.arguments}}
                for item in first.output if item.type == "function_call"]},
            *({"role": "tool", "tool_call_id": item.call_id, "content": "12"}
              for item in first.output if item.type == "function_call")]
        tools = [{"type": "function", "function": {key: tool[key] for key in ("name", "parameters")}}
                 for tool in TOOLS]
        text = server.post("/tokenize", {"messages": chat, "tools": tools, "reasoning_effort": "low"})
        self.assertEqual(prompts[0], text.json["count"])

    def test_roles(self):
        items = [{"role": "developer", "content": "d"}, *user("a"),
                 {"role": "assistant", "content": "b"}, *user([{"type": "input_text", "text": "c"}])]
        count = client.responses.create(model="mini", input=items, instructions="i",
                                        max_output_tokens=1).usage.input_tokens
        chat = [{"role": "system", "content": "i"}, {"role": "system", "content": "d"}, *user("a"),
                {"role": "assistant", "content": "b"}, *user("c")]
        self.assertEqual(count, server.post("/tokenize", {"messages": chat}).json["count"])

    def test_what_was_asked_is_repeated(self):
        answer = ask("say: x", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5,
                     max_output_tokens=7, tools=TOOLS, tool_choice="auto")
        self.assertEqual((answer.instructions, answer.metadata, answer.temperature,
                          answer.max_output_tokens, answer.tool_choice),
                         ("Be brief.", {"a": "b"}, 0.5, 7, "auto"))
        self.assertEqual([tool.name for tool in answer.tools], ["get_weather", "now"])

    def test_what_is_not_kept_is_refused_by_name(self):
        for more, param in (({"previous_response_id": "resp_1"}, "previous_response_id"),
                            ({"store": True}, "store"), ({"background": True}, "background"),
                            ({"conversation": "conv_1"}, "conversation"),
                            ({"truncation": "auto"}, "truncation"),
                            ({"include": ["message.output_text.logprobs"]}, "include[0]"),
                            ({"tools": [{"type": "web_search"}]}, "tools[0].type")):
            with self.subTest(param):
                with self.assertRaises(openai.BadRequestError) as caught:
                    ask("say: x", **more)
                self.assertEqual(caught.exception.param, param)
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve("resp_1")


if __name__ == "__main__":
    unittest.main()
