"""/v1/messages through the official Anthropic client. The server is scripted."""
import asyncio
import typing
import unittest

from serve_process import Server, anthropic_client, cases, dsml, need_clients, user

need_clients()
import anthropic  # noqa: E402
import pydantic  # noqa: E402
from anthropic import types  # noqa: E402

REASONING = "Let me see."
TOOLS = [{"name": "get_weather", "description": "Weather",
          "input_schema": {"type": "object", "required": ["city"], "properties": {
              "city": {"type": "string"}, "days": {"type": "integer"}, "more": {}}}},
         {"name": "now", "input_schema": {"type": "object"}}]
THINK = {"type": "enabled", "budget_tokens": 1024}
EVENT = pydantic.TypeAdapter(typing.get_args(types.RawMessageStreamEvent)[0])


def setUpModule():
    global server, client
    server = Server("--scripted", "0", "--port", "0", "--thinking", "off", "--max-model-len", "4096",
                    "--keep-alive", "0.1")
    unittest.addModuleCleanup(server.close)
    client = anthropic_client(server)


def options_of(case):
    options = {"model": "mini", "max_tokens": 2000, "messages": user(prompt_of(case))}
    if case.get("thinking"):
        options["thinking"] = THINK
    if case.get("tools") or case.get("calls"):
        options["tools"] = TOOLS
    if "stop" in case:
        options["stop_sequences"] = case["stop"]
    return options


def ask(text, **options):
    return client.messages.create(**{"model": "mini", "max_tokens": 100, "messages": user(text),
                                     **options})


def prompt_of(case):
    return "say: " + case["says"] + (dsml(*case["calls"]) if case.get("calls") else "")


def parts(message):
    reasoning, text, calls = "", "", []
    for block in message.content:
        if block.type == "thinking":
            reasoning += block.thinking
        elif block.type == "text":
            text += block.text
        else:
            calls.append([block.name, block.input])
    return reasoning, text, calls


class Answers(unittest.TestCase):
    def test_whole_answers(self):
        for case in cases("outputs.json"):
            with self.subTest(case["name"]):
                message = client.messages.create(**options_of(case))
                reasoning = REASONING if case.get("thinking") else ""
                self.assertEqual(parts(message), (reasoning, case["content"], case.get("calls", [])))
                met = [s for s in case.get("stop", []) if s in case["says"]]
                self.assertEqual(message.stop_reason, "tool_use" if case.get("calls") else
                                 "stop_sequence" if met else "end_turn")
                self.assertEqual(message.stop_sequence in met, bool(met))

    def test_streams_are_the_whole_answers(self):
        async def stream(of, case):
            async with of.messages.stream(**options_of(case)) as stream:
                text = "".join([text async for text in stream.text_stream])
                return text, await stream.get_final_message()

        async def streams():
            async with anthropic_client(server, asynchronous=True) as of:
                return await asyncio.gather(*(stream(of, case) for case in cases("outputs.json")))

        for case, (text, final) in zip(cases("outputs.json"), asyncio.run(streams())):
            with self.subTest(case["name"]):
                message = client.messages.create(**options_of(case))
                self.assertEqual(text, case["content"])
                self.assertEqual(parts(final), parts(message))
                self.assertEqual((final.stop_reason, final.stop_sequence),
                                 (message.stop_reason, message.stop_sequence))
                self.assertEqual(final.usage.output_tokens, message.usage.output_tokens)

    def events(self, body):
        """Checked against the client's types; blocks must be balanced."""
        answer = server.post("/v1/messages", {"max_tokens": 500, "stream": True, **body})
        self.assertEqual(answer.status, 200, answer.text)
        events, opened = [], None
        for name, data in answer.events:
            if name in ("ping", "error"):
                events.append(name)
                continue
            event = EVENT.validate_json(data)
            self.assertEqual(event.type, name)
            if name == "content_block_start":
                self.assertIsNone(opened)
                opened = event.content_block.type
                self.assertEqual(event.index, self.count(events, name))
            elif name.startswith("content_block"):
                self.assertEqual(event.index, self.count(events, "content_block_start") - 1)
                if name == "content_block_stop":
                    opened = None
                else:
                    kinds = {"text": ["text_delta"], "tool_use": ["input_json_delta"],
                             "thinking": ["thinking_delta", "signature_delta"]}
                    self.assertIn(event.delta.type, kinds[opened])
            elif name == "message_delta":
                self.assertIsNone(opened)
            events.append(event)
        return events

    def count(self, events, kind):
        return sum(getattr(event, "type", event) == kind for event in events)

    def test_events_are_balanced(self):
        """Reasoning, text, calls, each in a block of its own, usage in the last event but one."""
        call = dsml(["get_weather", {"city": "Oslo"}], ["now", {}])
        events = self.events({"messages": user("say: Both." + call), "tools": TOOLS,
                              "thinking": THINK})
        events = [event for event in events if event != "ping"]
        started = [event.content_block.type for event in events
                   if event.type == "content_block_start"]
        self.assertEqual(started, ["thinking", "text", "tool_use", "tool_use"])
        self.assertEqual(events[0].type, "message_start")
        self.assertEqual(events[0].message.content, [])
        self.assertEqual([event.type for event in events[-2:]], ["message_delta", "message_stop"])
        whole = ask("say: Both." + call, tools=TOOLS, thinking=THINK, max_tokens=500).usage
        self.assertEqual(events[-2].usage.output_tokens, whole.output_tokens)
        self.assertEqual(events[-2].delta.stop_reason, "tool_use")

    def test_input_json(self):
        value = "".join(f"line {i} \"quoted\" 水\n" for i in range(40))
        with client.messages.stream(model="mini", max_tokens=3000, tools=TOOLS, messages=user(
                "say: " + dsml(["get_weather", {"city": value}]))) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            block, = stream.get_final_message().content
        self.assertGreater(len(pieces), 10)
        self.assertEqual(block.input, {"city": value})

    def test_cut_short(self):
        """A call that is not whole is not shown as one."""
        call = "say: Sure." + dsml(["get_weather", {"city": "Oslo" * 20}])
        message = ask(call, tools=TOOLS, max_tokens=40)
        self.assertEqual(message.stop_reason, "max_tokens")
        self.assertEqual(parts(message), ("", "Sure.", []))
        events = self.events({"messages": user(call), "tools": TOOLS, "max_tokens": 40})
        self.assertEqual(events[-2].delta.stop_reason, "max_tokens")

    def test_silence(self):
        """Pings while nothing comes; the client skips them. Then an error is an event."""
        with self.assertRaises(anthropic.APIStatusError) as caught:
            with client.messages.stream(model="mini", max_tokens=9, messages=user("hang"),
                                        extra_headers={"X-Request-Timeout": "0.5"}) as stream:
                for _ in stream:
                    pass
        self.assertEqual(caught.exception.body["error"]["type"], "timeout_error")
        events = self.events({"messages": user("fail: text")})
        self.assertEqual(events[-1], "error")


class Conversation(unittest.TestCase):
    def tokens(self, **chat):
        return server.post("/tokenize", chat).json["count"]

    def test_system_prompts(self):
        chat = self.tokens(messages=[{"role": "system", "content": "Be brief."}, *user("x")])
        for system in ("Be brief.", [{"type": "text", "text": "Be brief.",
                                      "cache_control": {"type": "ephemeral"}}]):
            with self.subTest(system=system):
                usage = ask("x", system=system, max_tokens=1).usage
                self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, chat)
                counted = client.messages.count_tokens(model="mini", system=system, messages=user("x"))
                self.assertEqual(counted.input_tokens, chat)

    def test_count_tokens(self):
        for more in ({}, {"tools": TOOLS}, {"thinking": THINK},
                     {"tools": TOOLS, "tool_choice": {"type": "any"}}):
            with self.subTest(more=more):
                usage = ask("count", max_tokens=1, **more).usage
                count = client.messages.count_tokens(model="mini", messages=user("count"), **more)
                self.assertEqual(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_rounds(self):
        """Thinking blocks come back or not; results of several calls in one message."""
        messages = user("say: Both." + dsml(["get_weather", {"city": "Oslo"}], ["now", {}]))
        first = client.messages.create(model="mini", max_tokens=500, messages=messages, tools=TOOLS,
                                       thinking=THINK)
        self.assertEqual([block.type for block in first.content],
                         ["thinking", "text", "tool_use", "tool_use"])
        self.assertTrue(first.content[0].signature)
        counts = []
        for keeps in (True, False):
            sent = [block.model_dump(exclude_none=True) for block in first.content
                    if keeps or block.type != "thinking"]
            results = [{"type": "tool_result", "tool_use_id": block.id, "content": content}
                       for block, content in zip(first.content[2:],
                                                 ("12", [{"type": "text", "text": "noon"}]))]
            again = [*messages, {"role": "assistant", "content": sent}, *user(results)]
            usage = client.messages.create(model="mini", max_tokens=9, messages=again, tools=TOOLS,
                                           thinking=THINK).usage
            counts.append(usage.input_tokens + usage.cache_read_input_tokens)
        self.assertGreater(counts[0], counts[1])
        calls = [{"id": block.id, "type": "function", "function": {
            "name": block.name, "arguments": "{}" if block.name == "now" else '{"city": "Oslo"}'}}
            for block in first.content[2:]]
        chat = [*messages, {"role": "assistant", "content": "Both.", "reasoning_content": REASONING,
                            "tool_calls": calls},
                *({"role": "tool", "tool_call_id": call["id"], "content": content}
                  for call, content in zip(calls, ("12", "noon")))]
        tools = [{"type": "function", "function": {
            "name": tool["name"], "description": tool.get("description", ""),
            "parameters": tool["input_schema"]}} for tool in TOOLS]
        self.assertEqual(counts[0], self.tokens(messages=chat, tools=tools,
                                                thinking={"type": "enabled"}))

    def test_the_last_message_is_continued(self):
        message = client.messages.create(model="mini", max_tokens=3, messages=[
            *user("say: !"), {"role": "assistant", "content": "So be it"}])
        self.assertEqual(message.content[0].text, "!")

    def test_cached_tokens(self):
        prompt = "say: x" + " cached" * 400
        first, second = (ask(prompt, max_tokens=9).usage for _ in range(2))
        self.assertEqual((first.cache_read_input_tokens, first.cache_creation_input_tokens), (0, 0))
        self.assertGreaterEqual(second.cache_read_input_tokens, 256)
        self.assertEqual(second.input_tokens + second.cache_read_input_tokens, first.input_tokens)
        with client.messages.stream(model="mini", max_tokens=9, messages=user(prompt)) as stream:
            self.assertEqual(stream.get_final_message().usage, second)

    def test_models(self):
        self.assertEqual([model.id for model in client.models.list()], ["mini"])
        self.assertEqual(client.models.retrieve("mini").id, "mini")
        with self.assertRaises(anthropic.NotFoundError) as caught:
            client.models.retrieve("other")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")

    def test_errors(self):
        for error, kind, options in (
                (anthropic.NotFoundError, "not_found_error", {"model": "other"}),
                (anthropic.BadRequestError, "invalid_request_error", {"messages": []}),
                (anthropic.BadRequestError, "invalid_request_error", {"max_tokens": 0}),
                (anthropic.BadRequestError, "invalid_request_error", {"tool_choice": {"type": "any"}}),
                (anthropic.BadRequestError, "invalid_request_error", {"stop_sequences": [""]}),
                (anthropic.BadRequestError, "invalid_request_error",
                 {"messages": user("refuse: not today")}),
                (anthropic.InternalServerError, "api_error", {"messages": user("fail: x")})):
            with self.subTest(options=options):
                with self.assertRaises(error) as caught:
                    ask("say: x", **options)
                self.assertEqual(caught.exception.body["type"], "error")
                self.assertEqual(caught.exception.body["error"]["type"], kind)
                self.assertTrue(caught.exception.request_id)

    def test_errors_count_messages_as_the_client_does(self):
        """System prompt and results of tools are messages of their own only inside."""
        call = {"role": "assistant", "content": [
            {"type": "tool_use", "id": id, "name": "now", "input": {}} for id in ("t1", "t2")]}
        results = user([{"type": "tool_result", "tool_use_id": id, "content": "noon"}
                        for id in ("t1", "t2")])
        for system in ({}, {"system": "Be brief."}):
            for messages, at in (([*user("x"), call, *user("y")], 1),
                                 ([*user("x"), call, *results, call, *user("y")], 3)):
                with self.subTest(system=system, at=at):
                    with self.assertRaises(anthropic.BadRequestError) as caught:
                        ask("", messages=messages, **system)
                    self.assertIn(f"messages[{at}]", caught.exception.body["error"]["message"])

    def test_counting_needs_the_model_too(self):
        with self.assertRaises(anthropic.NotFoundError):
            client.messages.count_tokens(model="other", messages=user("x"))


if __name__ == "__main__":
    unittest.main()
