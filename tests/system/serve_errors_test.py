"""What is refused, how, and as which exception of the official clients; and that numbers agree."""
import collections
import json
import pathlib
import random
import tempfile
import unittest

from serve_process import (Server, anthropic_client, cases, need_clients, openai_client, user)

need_clients()
import anthropic  # noqa: E402
import openai  # noqa: E402

CONTEXT = 2048
EXCEPTIONS = {400: openai.BadRequestError, 404: openai.NotFoundError,
              500: openai.InternalServerError}


def body_of(case):
    """Cases write what is long in short."""
    text = json.dumps(case["body"]).replace('"LONG"', json.dumps("word " * 2500))
    return json.loads(text.replace('"REPEAT 100"', ", ".join(['"a"'] * 99)))


class Errors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--scripted", "0", "--port", "0", "--thinking", "off",
                            "--max-model-len", str(CONTEXT), "--max-body-mib", "1")
        cls.addClassCleanup(cls.server.close)
        cls.client = openai_client(cls.server)

    def test_cases(self):
        for case in cases("errors.json"):
            with self.subTest(case["name"]):
                path = case["path"].removeprefix("/v1")
                with self.assertRaises(EXCEPTIONS[case["status"]]) as caught:
                    self.client.post(path, body=body_of(case), cast_to=object)
                error = caught.exception
                self.assertEqual((error.code, error.type, error.param),
                                 (case["code"], case["type"], case["param"]))
                self.assertIn(case["says"], error.body["message"])
                self.assertTrue(error.request_id)

    def test_bodies_that_are_no_request(self):
        for body in ("", "{", "[]", "3", "null", '{"messages": [}', "\x00", '{"a": 1e999}',
                     '{"messages": ' + "[" * 100_000, '{"a": "\ud800"}'.encode("utf-8", "replace"),
                     b'{"a": "\xff"}'):
            with self.subTest(body=body[:30]):
                for path in ("chat/completions", "completions", "responses", "messages"):
                    answer = self.server.post("/v1/" + path, body)
                    self.assertEqual(answer.status, 400)
                    self.assertTrue(answer.json["error"]["message"])

    def test_a_body_that_is_too_large(self):
        answer = self.server.post("/v1/chat/completions", {"messages": user("x" * (1 << 20))})
        self.assertEqual(answer.status, 413)
        self.assertTrue(answer.json["error"]["message"])

    def test_paths_and_methods(self):
        for method, path, status in (("GET", "/v1/chat/completions", 405), ("POST", "/metrics", 405),
                                     ("GET", "/nothing", 404), ("POST", "/v1/embeddings", 404),
                                     ("GET", "/v1/models/../../etc/passwd", 404),
                                     ("GET", "/v1/files", 404)):
            with self.subTest(path):
                answer = self.server.get(path, method, "{}" if method == "POST" else None)
                self.assertEqual(answer.status, status)
                self.assertTrue(answer.json["error"]["message"])
                self.assertEqual("Allow" in answer.headers, status == 405)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="mini", input="x")

    def test_ids_of_requests(self):
        answer = self.server.post("/v1/chat/completions", {}, X_Request_Id="mine-1")
        self.assertEqual(answer.headers["X-Request-Id"], "mine-1")
        answer = self.client.chat.completions.create(model="mini", messages=user("say: x"))
        self.assertRegex(answer._request_id, "^req_")

    def test_envelope(self):
        """Nothing around the answer: the client's types are the body."""
        answer = self.server.post("/v1/chat/completions", {"messages": user("say: x"),
                                                           "stream": False}).json
        self.assertEqual(set(answer), {"id", "object", "created", "model", "choices", "usage"})

    def test_unreachable(self):
        server = Server("--scripted", "0", "--port", "0")
        server.close()
        with self.assertRaises(openai.APIConnectionError):
            openai_client(server).models.list()
        with self.assertRaises(anthropic.APIConnectionError):
            anthropic_client(server).models.list()


class Numbers(unittest.TestCase):
    """A mixed run: what clients were told is what metrics, status, usage and ledger say."""

    REQUESTS = 300

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.ledger = pathlib.Path(scratch.name) / "ledger.jsonl"
        self.server = Server("--scripted", "0.2", "--port", "0", "--thinking", "off",
                             "--max-model-len", "16384", "--ledger", str(self.ledger))
        self.addCleanup(self.server.close)
        self.client = openai_client(self.server)
        self.anthropic = anthropic_client(self.server)
        self.sums = collections.Counter()

    def add(self, prompt, cached, output, requests=1):
        self.sums.update(prompt=prompt, cached=cached, output=output, told=requests)

    def add_usage(self, usage):
        self.add(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens,
                 usage.completion_tokens)

    def chat(self, text, stream):
        options = {"model": "mini", "messages": user(text), "max_tokens": 20,
                   "n": self.random.choice([1, 1, 4]), "extra_body": self.random.choice(
                       [None, {"thinking": {"type": "enabled"}}])}
        if not stream:
            return self.add_usage(self.client.chat.completions.create(**options).usage)
        *_, last = self.client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **options)
        return self.add_usage(last.usage)

    def completion(self, text, stream):
        self.add_usage(self.client.completions.create(model="mini", prompt=[text, text + "!"],
                                                      max_tokens=7).usage)

    def response(self, text, stream):
        options = {"model": "mini", "input": text, "max_output_tokens": 9}
        if stream:
            *_, last = self.client.responses.create(stream=True, **options)
            usage = last.response.usage
        else:
            usage = self.client.responses.create(**options).usage
        self.add(usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens)

    def message(self, text, stream):
        options = {"model": "mini", "messages": user(text), "max_tokens": 9}
        if stream:
            with self.anthropic.messages.stream(**options) as events:
                usage = events.get_final_message().usage
        else:
            usage = self.anthropic.messages.create(**options).usage
        self.add(usage.input_tokens + usage.cache_read_input_tokens, usage.cache_read_input_tokens,
                 usage.output_tokens)

    def refused(self, text, stream):
        self.sums["refused"] += 1
        body = self.random.choice([{"messages": user("refuse: x")}, {"messages": []},
                                   {"messages": user(text), "n": 0}, {"messages": user(text),
                                                                      "model": "other"}])
        with self.assertRaises(openai.APIStatusError):
            self.client.post("/chat/completions", body={**body, "stream": stream}, cast_to=object)

    def failed(self, text, stream):
        self.sums["error"] += 1
        with self.assertRaises(openai.APIError):
            list(self.client.chat.completions.create(model="mini", messages=user("fail: a b c"),
                                                     stream=True))

    def aborted(self, text, stream):
        """In the middle of an answer, or before its first token."""
        self.sums["abort"] += 1
        if stream:
            with self.client.chat.completions.create(model="mini", messages=user("count"), n=2,
                                                     stream=True) as chunks:
                for _, chunk in zip(range(6), chunks):
                    pass
            return
        with self.assertRaises(openai.APITimeoutError):
            self.client.chat.completions.create(model="mini", messages=user("hang"), n=2,
                                                timeout=0.02)

    def test_they_agree(self):
        self.random = random.Random(5)
        kinds = [self.chat, self.chat, self.completion, self.response, self.message, self.refused,
                 self.failed, self.aborted]
        texts = ["count", "say: one two three", "say: " + "a long one " * 60, "hello"]
        for _ in range(self.REQUESTS):
            self.random.choice(kinds)(self.random.choice(texts), self.random.random() < 0.5)
        status, sums = self.server.wait_for_idle(), self.sums
        metrics, totals = self.server.metrics(), status["totals"]
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        usage, = self.server.get("/v1/usage").json["data"]

        # Received = ended, by how.
        self.assertEqual(totals["received"], self.REQUESTS)
        self.assertEqual(metrics["tidemill:requests_received_total"], self.REQUESTS)
        self.assertEqual(metrics["tidemill:requests_finished_total"], self.REQUESTS)
        self.assertEqual(usage["requests"], self.REQUESTS)
        self.assertEqual(len(lines), self.REQUESTS)
        outcomes = collections.Counter(line["outcome"] for line in lines)
        for outcome in ("refused", "error", "abort"):
            self.assertEqual(outcomes[outcome], sums[outcome], outcome)
        for outcome, count in outcomes.items():
            self.assertEqual(metrics[f'tidemill:requests_finished_total{{outcome="{outcome}"}}'], count)
            self.assertEqual(totals["outcomes"][outcome], count)
            self.assertEqual(usage["outcomes"][outcome], count)

        # Tokens: what was told, and what was computed for answers that broke off.
        failed = [line for line in lines if line["outcome"] in ("error", "abort")]
        self.assertTrue(all(line["output_tokens"] > 0 for line in failed
                            if line["outcome"] == "error"))
        self.assertTrue(any(line["output_tokens"] > 0 for line in failed
                            if line["outcome"] == "abort"))
        extra = collections.Counter()
        for line in failed:
            extra.update(prompt=line["prompt_tokens"], cached=line["cached_tokens"],
                         output=line["output_tokens"])
        for name, key, metric in (
                ("prompt", "prompt_tokens", "vllm:prompt_tokens_total"),
                ("cached", "cached_tokens", "vllm:prompt_tokens_cached_total"),
                ("output", "output_tokens", "vllm:generation_tokens_total")):
            with self.subTest(name):
                expected = sums[name] + extra[name]
                self.assertEqual(sum(line[key] for line in lines), expected)
                self.assertEqual(metrics[metric], expected)
                self.assertEqual(totals[key], expected)
                self.assertEqual(usage[key.replace("output", "completion")], expected)

        # Requests with a token have a time to it; gauges are back at 0.
        with_tokens = sum(line["output_tokens"] > 0 for line in lines)
        self.assertEqual(metrics["vllm:time_to_first_token_seconds_count"], with_tokens)
        self.assertEqual(metrics["vllm:e2e_request_latency_seconds_count"],
                         self.REQUESTS - sums["refused"])
        for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "tidemill:streams",
                      "tidemill:requests_in_flight", "tidemill:requests_preparing",
                      "tidemill:body_bytes", "tidemill:unsent_bytes"):
            self.assertEqual(metrics[gauge], 0, gauge)
        self.assertEqual(metrics["tidemill:choices_submitted_total"],
                         metrics["tidemill:choices_finished_total"])

        # The ledger goes on where it was.
        self.server.signal()
        self.assertEqual(self.server.exit_code(), 0)
        again = Server("--scripted", "0", "--port", "0", "--ledger", str(self.ledger))
        self.addCleanup(again.close)
        self.assertEqual(again.get("/v1/usage").json["data"], [usage])


if __name__ == "__main__":
    unittest.main()
