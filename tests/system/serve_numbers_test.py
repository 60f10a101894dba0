"""A mixed run: what clients were told is what metrics, status, usage and ledger say."""
import collections
import concurrent.futures
import json
import pathlib
import random
import tempfile
import threading
import unittest

from serve_process import MODEL_FLAGS, Server, anthropic_client, need_clients, openai_client, user

need_clients()
import openai  # noqa: E402

Tokens = collections.namedtuple("Tokens", "prompt cached output")
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "tidemill:streams",
          "tidemill:requests_in_flight", "tidemill:requests_preparing", "tidemill:body_bytes")


class Traffic:
    """Requests of all kinds from several threads, and what their clients heard of them."""

    THREADS = 6

    def __init__(self, server, texts, most_tokens, endless, **options):
        """`options`: of every request; answers have up to `most_tokens`. `endless`: tokens of the
        first of `texts`, so many that nobody waits for all of them."""
        self.endless = endless
        self.server, self.texts, self.most_tokens, self.options = server, texts, most_tokens, options
        self.client, self.anthropic = openai_client(server), anthropic_client(server)
        self.lock = threading.Lock()
        self.told = {}                         # by the answer's id
        self.outcomes = collections.Counter()  # of those that are no answer

    def send(self, kinds, count):
        def one(i):
            luck = random.Random(i)
            luck.choice(kinds)(self, luck)

        with concurrent.futures.ThreadPoolExecutor(self.THREADS) as pool:
            for _ in pool.map(one, range(count)):
                pass

    def ended(self, outcome):
        with self.lock:
            self.outcomes[outcome] += 1

    def tell(self, id, prompt, cached, output):
        with self.lock:
            assert id not in self.told, id
            self.told[id] = Tokens(prompt, cached, output)

    def tell_openai(self, answer):
        usage = answer.usage
        self.tell(answer.id, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens,
                  usage.completion_tokens)

    def arguments(self, luck, **more):
        """Of most requests."""
        text = luck.choice(self.texts).format(luck.randrange(1000))
        return {"model": "mini", "messages": user(text),
                "max_tokens": luck.randint(1, self.most_tokens)} | self.options | more

    def long(self, luck, **more):
        messages = user(self.texts[0].format(""))
        return self.arguments(luck, **{"messages": messages, "max_tokens": self.endless} | more)

    # ---- kinds of requests; `luck` decides on their details

    def chat(self, luck):
        options = self.arguments(luck, n=luck.choice([1, 1, 1, 4]))
        if luck.random() < 0.5:
            return self.tell_openai(self.client.chat.completions.create(**options))
        *_, last = self.client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **options)
        return self.tell_openai(last)

    def completion(self, luck):
        options = self.arguments(luck)
        text = options.pop("messages")[0]["content"]
        self.tell_openai(self.client.completions.create(prompt=[text, text + "!"], **options))

    def response(self, luck):
        options = self.arguments(luck)
        text = options.pop("messages")[0]["content"]
        options = {"input": text, "max_output_tokens": options.pop("max_tokens"), **options}
        if luck.random() < 0.5:
            *_, last = self.client.responses.create(stream=True, **options)
            answer = last.response
        else:
            answer = self.client.responses.create(**options)
        usage = answer.usage
        self.tell(answer.id, usage.input_tokens, usage.input_tokens_details.cached_tokens,
                  usage.output_tokens)

    def message(self, luck):
        options = self.arguments(luck)
        if luck.random() < 0.5:
            with self.anthropic.messages.stream(**options) as events:
                answer = events.get_final_message()
        else:
            answer = self.anthropic.messages.create(**options)
        usage = answer.usage
        self.tell(answer.id, usage.input_tokens + usage.cache_read_input_tokens,
                  usage.cache_read_input_tokens, usage.output_tokens)

    def refused(self, luck):
        body = luck.choice([{"messages": []}, {"messages": user("x"), "n": 0},
                            {"messages": user("x"), "model": "other"},
                            {"messages": user("x" * 40_000)}])
        try:
            self.client.post("/chat/completions", body={**body, "stream": luck.random() < 0.5},
                             cast_to=object)
        except (openai.BadRequestError, openai.NotFoundError):
            return self.ended("refused")
        raise AssertionError(f"{body}: was not refused")

    def replayed(self, luck):
        """The second is the first one's answer, and costs nothing."""
        options = self.arguments(luck, extra_headers={"Idempotency-Key": str(luck.random())})
        first, second = (self.client.chat.completions.create(**options) for _ in range(2))
        assert first == second
        self.tell_openai(first)
        self.ended("replayed")

    def aborted(self, luck):
        """In the middle of an answer, which would be long."""
        with self.client.chat.completions.create(
                **self.long(luck, stream=True, n=luck.choice([1, 2]))) as chunks:
            for _, chunk in zip(range(luck.randint(1, 6)), chunks):
                pass
        self.ended("abort")

    def aborted_in_silence(self, luck):
        try:
            self.client.chat.completions.create(
                **self.arguments(luck, messages=user("hang"), timeout=0.02))
        except openai.APITimeoutError:
            return self.ended("abort")
        raise AssertionError("hang: was answered")

    def late(self, luck):
        try:
            self.client.chat.completions.create(
                **self.long(luck, extra_headers={"X-Request-Timeout": "0.05"}))
        except openai.InternalServerError as error:
            assert error.code == "deadline_exceeded", error
            return self.ended("late")
        raise AssertionError("an endless answer within 50 ms")

    def failed(self, luck):
        try:
            list(self.client.chat.completions.create(
                **self.long(luck, stream=True, messages=user("fail: a b c"))))
        except openai.APIError:
            return self.ended("error")
        raise AssertionError("fail: did not fail")


ANSWERS = [Traffic.chat, Traffic.chat, Traffic.completion, Traffic.response, Traffic.message]


class Numbers(unittest.TestCase):
    def serve(self, *flags):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.ledger = pathlib.Path(scratch.name) / "ledger.jsonl"
        self.server = Server(*flags, "--ledger", str(self.ledger))
        self.addCleanup(self.server.close)
        return self.server

    def agree(self, traffic):
        """The metrics, once all is idle."""
        status, metrics = self.server.wait_for_idle(), self.server.metrics()
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        usage, = self.server.get("/v1/usage").json["data"]
        totals, received = status["totals"], len(traffic.told) + traffic.outcomes.total()

        with self.subTest("received = ended, by how"):
            outcomes = collections.Counter(line["outcome"] for line in lines)
            self.assertEqual(outcomes.total(), received)
            self.assertEqual(totals["received"], received)
            self.assertEqual(metrics["tidemill:requests_received_total"], received)
            self.assertEqual(metrics["tidemill:requests_finished_total"], received)
            self.assertEqual(usage["requests"], received)
            # Who was late was refused, aborted or failed, depending on how far the answer was.
            more = {outcome: outcomes[outcome] - traffic.outcomes[outcome]
                    for outcome in ("refused", "error", "abort", "replayed")}
            self.assertGreaterEqual(min(more.values()), 0, more)
            self.assertEqual(sum(more.values()), traffic.outcomes["late"], more)
            self.assertEqual(more["replayed"], 0)
            for outcome, count in outcomes.items():
                name = f'tidemill:requests_finished_total{{outcome="{outcome}"}}'
                self.assertEqual(metrics[name], count)
                self.assertEqual(totals["outcomes"][outcome], count)
                self.assertEqual(usage["outcomes"][outcome], count)

        with self.subTest("each client was told what the ledger says"):
            tokens = {line["id"]: Tokens(line["prompt_tokens"], line["cached_tokens"],
                                         line["output_tokens"])
                      for line in lines if line["outcome"] != "replayed"}
            self.assertEqual({id: tokens.get(id) for id in traffic.told}, traffic.told)

        with self.subTest("the sums are those of metrics, status and usage"):
            for key, metric in (("prompt_tokens", "vllm:prompt_tokens_total"),
                                ("cached_tokens", "vllm:prompt_tokens_cached_total"),
                                ("output_tokens", "vllm:generation_tokens_total")):
                expected = sum(line[key] for line in lines)
                self.assertGreater(expected, 0, key)
                self.assertEqual(metrics[metric], expected, key)
                self.assertEqual(totals[key], expected, key)
                self.assertEqual(usage[key.replace("output", "completion")], expected, key)

        with self.subTest("what broke off costs what was computed, what did not start nothing"):
            costs = collections.defaultdict(list)
            for line in lines:
                costs[line["outcome"]].append(line["output_tokens"])
                all_tokens = line["prompt_tokens"] + line["output_tokens"]
                if line["outcome"] in ("refused", "replayed"):
                    self.assertEqual(all_tokens, 0, line)
                if line["outcome"] == "error":  # a late one may have had its prompt only
                    self.assertGreater(all_tokens, 0, line)
            self.assertGreater(max(costs["abort"]), 0)

        with self.subTest("requests with a token have a time to it"):
            with_tokens = sum(line["output_tokens"] > 0 for line in lines)
            self.assertEqual(metrics["vllm:time_to_first_token_seconds_count"], with_tokens)
            self.assertEqual(metrics["vllm:e2e_request_latency_seconds_count"],
                             received - outcomes["refused"] - outcomes["replayed"])

        with self.subTest("nothing is left"):
            for gauge in GAUGES:
                self.assertEqual(metrics[gauge], 0, gauge)
            self.assertEqual(metrics["tidemill:choices_submitted_total"],
                             metrics["tidemill:choices_finished_total"])

        with self.subTest("the ledger goes on where it was"):
            self.server.signal()
            self.assertEqual(self.server.exit_code(), 0)
            again = Server("--scripted", "0", "--port", "0", "--ledger", str(self.ledger))
            self.addCleanup(again.close)
            self.assertEqual(again.get("/v1/usage").json["data"], [usage])
        return metrics, status["engine"]

    def test_scripted(self):
        server = self.serve("--scripted", "0.2", "--port", "0", "--thinking", "off",
                            "--max-model-len", "16384")
        texts = ["count", "say: one two three {}", "say: " + "a long one " * 60, "hello {}"]
        traffic = Traffic(server, texts, 20, 16_000)
        traffic.send([*ANSWERS, Traffic.refused, Traffic.failed, Traffic.aborted,
                      Traffic.aborted_in_silence, Traffic.replayed], 300)
        self.agree(traffic)

    def test_model(self):
        """With drafts, and memory so short that sequences are preempted."""
        server = self.serve(*MODEL_FLAGS, "--drafts", "dynamic", "--max-num-seqs", "4",
                            "--max-model-len", "512", "--state-bytes", "2266000",
                            "--max-num-batched-tokens", "128")
        free = server.status()["engine"]["pool"]
        # Three blocks each, of which there are not enough for all.
        every = {"extra_body": {"ignore_eos": True}}
        long_ones = Traffic(server, ["{} " + "long " * 230], 1, 0, max_tokens=40, **every)
        long_ones.send([Traffic.message], 6)
        traffic = Traffic(server, ["Hello {}"] * 14 + ["cached " * 140], 2, 490, **every)
        traffic.send([*ANSWERS * 3, *[Traffic.refused] * 5, Traffic.aborted, Traffic.late,
                      Traffic.replayed], 600)
        self.assertEqual({usage.output for usage in long_ones.told.values()}, {40})
        traffic.told |= long_ones.told
        metrics, engine = self.agree(traffic)
        self.assertGreaterEqual(metrics["tidemill:requests_received_total"], 600)
        self.assertGreater(metrics["vllm:num_preemptions_total"], 0)
        self.assertEqual(metrics["vllm:num_preemptions_total"], engine["preemptions"])
        self.assertGreater(metrics["vllm:spec_decode_num_draft_tokens_total"], 0)
        self.assertEqual(engine["pool"], free)
        self.assertEqual(engine["slots"]["free"], engine["slots"]["total"])


if __name__ == "__main__":
    unittest.main()
