"""What a real model must write: JSON schemas, grammars, tool choices; through official clients."""
import itertools
import json
import unittest
from typing import Literal

import serve_process
from serve_process import (MODEL_FLAGS, Server, anthropic_client, need_clients, openai_client,
                           together, user)

need_clients()
import openai  # noqa: E402
import pydantic  # noqa: E402


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=1, le=99)
    tags: list[bool] = pydantic.Field(max_length=2)


class Free(pydantic.BaseModel):
    """No bounds: Anthropic's helper does not send them."""
    model_config = pydantic.ConfigDict(extra="forbid")
    name: Literal["Ann", "Bob"]
    adult: bool


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
    server = Server(*MODEL_FLAGS, "--max-model-len", "2048")
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


def whole_and_streamed(text, variants):
    """Of each variant of options both answers; all of them in the same batches."""
    wholes = together(lambda options: ask(text, **options), variants)
    return zip(wholes, together(lambda options: stream(text, **options), variants))


def thinking():
    """Reasoning that ends soon, whatever the model was taught."""
    return {"extra_body": {"thinking": {"type": "enabled"}}, "logit_bias": {str(think_end): 20}}


class Constraints(unittest.TestCase):
    def test_json_schema(self):
        variants = [{"response_format": SCHEMA, "max_tokens": 200, **more}
                    for more in ({}, {"temperature": 2}, {"n": 2})]
        for options, (answer, chunks) in zip(variants, whole_and_streamed("Who is it?", variants)):
            with self.subTest(options):
                for choice in answer.choices:
                    self.assertEqual(choice.finish_reason, "stop")
                    Person.model_validate_json(choice.message.content, strict=True)
                joined = "".join(c.delta.content for chunk in chunks
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
            model="mini", messages=user("Who?"), max_tokens=200, output_format=Free)
        self.assertIsInstance(message.parsed_output, Free)

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
                   temperature=0).choices[0].message.content
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
        with ask("A story", max_tokens=150, stream=True,
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
        variants = [{"tools": tools, "tool_choice": choice, "parallel_tool_calls": False,
                     "max_tokens": 120 if tools is STRICT else 40, **more}
                    for choice, tools, more in itertools.product(
                        ("required", named), (TOOLS, STRICT), ({}, thinking()))]
        for options, (answer, chunks) in zip(variants, whole_and_streamed("The weather?", variants)):
            with self.subTest(options):
                choice = answer.choices[0]
                call, = choice.message.tool_calls
                if options["tool_choice"] is named:
                    self.assertEqual(call.function.name, "clock")
                # What is not strict may have parameters without an end.
                if options["tools"] is STRICT or choice.finish_reason != "length":
                    self.assertEqual(choice.finish_reason, "tool_calls")
                    json.loads(call.function.arguments)
                if options["tools"] is STRICT:
                    self.check([call])
                self.assertEqual("logit_bias" in options, hasattr(choice.message, "reasoning_content"))
                self.assertEqual(choice.message.content, "")
                self.assertEqual(self.joined(chunks), [[call.function.name, call.function.arguments]])

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


if __name__ == "__main__":
    unittest.main()
