"""What users of a Hopper GPU see: the server and the command line with the cuda backend.

Plain HTTP, so that it also runs where no client is installed (scripts/gpu-check).
"""
import contextlib
import json
import os
import subprocess
import sys
import unittest

from serve_process import MODEL, TIDEMILL, Server, together, user

WORDS = "sea ship whale storm harbour lamp letter winter bread river stone garden".split()
PROMPTS = [f"Tell me about the {a} and the {b}." for a in WORDS for b in WORDS if a < b][:48]
GREEDY = {"temperature": 0}
NO_DEVICE = ("built without CUDA", "there is no CUDA device", "compute capability")
PERSON = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "age": {"type": "integer", "minimum": 1, "maximum": 99}}}


def tidemill(*arguments):
    return subprocess.run([TIDEMILL, *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "TIDEMILL_MODEL": MODEL})


def setUpModule():
    probe = tidemill("run", "--backend", "cuda", "--max-tokens", "1", "Hello")
    if any(reason in probe.stderr for reason in NO_DEVICE):
        print(probe.stderr.strip())
        sys.exit(77)
    if probe.returncode != 0:  # a device that fails is no reason to skip
        raise AssertionError(probe.stderr)
    global server
    server = Server("--port", "0", "--thinking", "off", "--backend", "cuda")
    unittest.addModuleCleanup(server.close)


def body(text, **options):
    return {"messages": user(text), "max_tokens": 40, "seed": 5, **options}


def ask(text, **options):
    answer = server.post("/v1/chat/completions", body(text, **options))
    if answer.status != 200:
        raise AssertionError(f"{answer.status}: {answer.text}")
    return answer.json


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def streamed(text, **options):
    events = server.post("/v1/chat/completions", body(text, stream=True, **options)).events
    assert events[-1][1] == "[DONE]", events[-1]
    chunks = [json.loads(data) for _, data in events[:-1]]
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])


class Answers(unittest.TestCase):
    def test_company_changes_nothing(self):
        """48 at once, greedy and drawn, whole and streamed: what each gets alone."""
        for options in (GREEDY, {"temperature": 1}, {"temperature": 0.8, "top_p": 0.9, "top_k": 40}):
            with self.subTest(options=options):
                crowd = together(lambda text: text_of(ask(text, **options)), PROMPTS)
                streams = together(lambda text: streamed(text, **options), PROMPTS)
                alone = [text_of(ask(text, **options)) for text in PROMPTS]
                self.assertEqual(crowd, alone)
                self.assertEqual(streams, alone)
                self.assertGreater(len(set(alone)), 40)

    def test_long_prompts_beside_answers(self):
        """A prompt of many chunks, from the cache the second time, while others are answered."""
        story = "The ship sails to the harbour at night. " * 180
        prompts = [story + text for text in PROMPTS[:4]]
        first = together(lambda text: ask(text, **GREEDY), prompts + PROMPTS[:16])
        again = [ask(text, **GREEDY) for text in prompts + PROMPTS[:16]]
        self.assertEqual([text_of(a) for a in first], [text_of(a) for a in again])
        for answer in again[:4]:
            usage = answer["usage"]
            self.assertGreater(usage["prompt_tokens"], 1000)
            self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 896)

    def test_schemas_hold(self):
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        answers = together(lambda seed: text_of(ask("Who is it?", response_format=schema, seed=seed,
                                                    temperature=1.2, max_tokens=200)), range(8))
        for text in answers:
            person = json.loads(text)
            self.assertLessEqual(len(person["name"]), 12)
            self.assertIn(person["age"], range(1, 100))

    def test_log_probabilities(self):
        answer = ask("Once upon a time", logprobs=True, top_logprobs=3, **GREEDY)
        entries = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual("".join(e["token"] for e in entries).strip(), text_of(answer).strip())
        for entry in entries:
            ranked = [top["logprob"] for top in entry["top_logprobs"]]
            self.assertEqual(ranked, sorted(ranked, reverse=True))
            self.assertEqual(entry["logprob"], ranked[0])


class Ends(unittest.TestCase):
    def test_a_client_that_leaves(self):
        for _ in range(4):
            connection, response = server.open("POST", "/v1/chat/completions", body(
                "Tell me a long story", stream=True, max_tokens=2000, ignore_eos=True))
            with contextlib.closing(connection):
                response.read(200)
        server.wait_for_idle()
        self.assertEqual(text_of(ask(PROMPTS[0], **GREEDY)), text_of(ask(PROMPTS[0], **GREEDY)))

    def test_signal(self):
        """Answers under way are finished, then the program ends."""
        other = Server("--port", "0", "--thinking", "off", "--backend", "cuda")
        self.addCleanup(other.close)
        connection, response = other.open("POST", "/v1/chat/completions", body(
            "Tell me a long story", stream=True, max_tokens=300, ignore_eos=True))
        with contextlib.closing(connection):
            response.read(100)
            other.signal()
            rest = response.read().decode()
        self.assertIn("[DONE]", rest)
        self.assertEqual(other.exit_code(), 0)


class CommandLine(unittest.TestCase):
    def test_drafts_change_nothing(self):
        plain = tidemill("run", "--backend", "cuda", "--temperature", "0", PROMPTS[1])
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertGreater(len(plain.stdout), 20)
        for drafts in ("5", "dynamic"):
            drafted = tidemill("run", "--backend", "cuda", "--temperature", "0", "--draft", drafts,
                               PROMPTS[1])
            self.assertEqual((drafted.returncode, drafted.stdout), (0, plain.stdout), drafted.stderr)

    def test_load(self):
        """Open loop: every request is answered."""
        report = tidemill("load", "--url", server.url, "--rate", "40", "--requests", "200",
                          "--prompt-tokens", "64:256", "--output-tokens", "16:64", "--ignore-eos",
                          "--json")
        self.assertEqual(report.returncode, 0, report.stderr)
        summary = json.loads(report.stdout)
        self.assertEqual((summary["requests"]["ok"], summary["failures"]), (200, []))
        ttft, itl = summary["from_sent"]["ttft_ms"], summary["itl_ms"]
        print(f"200 requests, 40 a second: {summary['output_tokens_per_second']:.0f} tokens/s, first "
              f"token {ttft['p50']:.1f} ms (p99 {ttft['p99']:.1f}), then every {itl['p50']:.2f} ms "
              f"(p99 {itl['p99']:.2f})")
        server.wait_for_idle()


if __name__ == "__main__":
    unittest.main()
