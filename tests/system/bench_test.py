"""`tidemill bench` as a script meets it: tables, records, the plot, and one line for every error."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml

TIDEMILL = os.environ["TIDEMILL"]
SOURCE = pathlib.Path(os.environ["TIDEMILL_SOURCE_DIR"])
CURVE = str(SOURCE / "bench" / "curves" / "large_device.csv")
ENVIRONMENT = {**os.environ, "TIDEMILL_MODEL": str(SOURCE / "models" / "mini")}
USAGE, FAILURE = 2, 1
SMALL = ["--requests", "6", "--prompt", "uniform:8-24", "--output", "fixed:6", "--warmups", "0"]


def bench(*args, **options):
    return subprocess.run([TIDEMILL, "bench", *args], capture_output=True, text=True, timeout=300,
                          env=ENVIRONMENT, **options)


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def file(self, name, text):
        path = self.dir / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def ok(self, *args, **options):
        result = bench(*args, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def json(self, *args, **options):
        return json.loads(self.ok(*args, "--json", **options))

    def fails(self, code, *args, says="", **options):
        result = bench(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, r"\Atidemill: [^\n]+\n\Z")
        self.assertIn(says, result.stderr)

    def records(self, path):
        return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


class Workloads(Case):
    def test_drafts_at_several_concurrencies(self):
        records, plot = str(self.dir / "r.jsonl"), str(self.dir / "p.svg")
        table = self.ok(*SMALL, "--concurrency", "1,3", "--draft", "off,fixed:2,dynamic",
                        "--records", records, "--pareto", plot)
        self.assertIn("tokens/s, in flight", table)
        lines = self.records(records)
        self.assertEqual(lines[0]["record"], "machine")
        self.assertGreater(lines[0]["threads"], 0)
        cells = [line for line in lines if line["record"] == "cell"]
        self.assertEqual([(c["drafts"], c["concurrency"]) for c in cells],
                         [(d, n) for d in ("off", "fixed:2", "dynamic") for n in (1, 3)])
        for cell in cells:
            self.assertEqual((cell["requests"], cell["failed"], cell["output_tokens"]), (6, 0, 36))
            self.assertGreater(cell["tokens_per_second"]["median"], 0)
            self.assertLessEqual(cell["ttft_ms"]["p50"], cell["ttft_ms"]["p99"])
            if cell["drafts"] != "dynamic":  # which drafts where it pays
                self.assertEqual(sum(cell["drafted"]) == 0, cell["drafts"] == "off")
        requests = [line for line in lines if line["record"] == "request"]
        self.assertEqual(len(requests), 36)
        for request in requests:
            self.assertEqual((request["finish"], request["output_tokens"]), ("length", 6))
            self.assertGreaterEqual(request["queued_ms"], 0)
            self.assertLessEqual(request["queued_ms"], request["ttft_ms"] + 1)
            self.assertLessEqual(request["ttft_ms"], request["total_ms"])
        texts = [node.text for node in xml.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
        for text in ("off", "fixed:2", "dynamic", "best trade", "3"):
            self.assertIn(text, texts)

    def test_open_loop(self):
        records = str(self.dir / "r.jsonl")
        summary = self.json(*SMALL, "--rate", "40", "--records", records, "--gaps")
        self.assertEqual(summary["cells"][0]["rate"], 40)
        requests = [line for line in self.records(records) if line["record"] == "request"]
        arrivals = [r["arrival_ms"] for r in sorted(requests, key=lambda r: r["index"])]
        self.assertEqual(arrivals, sorted(arrivals))
        self.assertEqual(arrivals[0], 0)
        self.assertEqual(len(set(arrivals)), 6)
        for request in requests:
            self.assertGreaterEqual(request["submit_ms"], request["arrival_ms"])
            self.assertLessEqual(sum(count for _, count in request["burst_ms"]), 5)

    def test_shared_prefixes_are_found_in_the_cache(self):
        args = ["--requests", "3", "--prompt", "fixed:300", "--output", "fixed:2", "--warmups", "0",
                "--concurrency", "1", "--shared-prefix"]
        self.assertGreater(self.json(*args, "0.9")["cells"][0]["cached_tokens"], 0)
        self.assertEqual(self.json(*args, "0")["cells"][0]["cached_tokens"], 0)

    def test_files(self):
        work = self.file("work.jsonl", '{"prompt": "The sea was calm."}\n\n'
                                       '{"prompt_tokens": [51, 1044], "output_length": 3}\n'
                                       '{"prompt_length": 9}\n')
        cell = self.json("--workload", work, "--output", "fixed:4", "--context", "64")["cells"][0]
        self.assertEqual(cell["requests"], 3)
        self.assertLessEqual(cell["output_tokens"], 11)
        with open(work) as stream:
            self.json("--workload", "-", "--context", "64", stdin=stream)

    def test_bad_files(self):
        for line, code in (("{", FAILURE), ('{"prompt_tokens": [99999]}', FAILURE),
                           ('{"prompt_length": 0}', FAILURE)):
            work = self.file("bad.jsonl", '{"prompt": "x"}\n' + line)
            self.fails(code, "--workload", work, "--context", "64", says="bad.jsonl:2: ")
        self.fails(FAILURE, "--workload", self.file("empty.jsonl", "\n"), says="no requests")
        self.fails(FAILURE, "--workload", str(self.dir / "none"), says="none")
        long = self.file("long.jsonl", '{"prompt_length": 60, "output_length": 9}\n')
        self.fails(FAILURE, "--workload", long, "--context", "64", says="line 1 needs 60")

    def test_interrupt_keeps_what_was_measured(self):
        records = self.dir / "r.jsonl"
        process = subprocess.Popen(
            [TIDEMILL, "bench", "--requests", "100000", "--prompt", "fixed:8", "--output",
             "fixed:8", "--warmups", "0", "--records", str(records)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, FAILURE, err)
        self.assertIn("interrupted", err)
        self.assertIn("tokens/s", out)
        self.assertTrue(any(line["record"] == "request" for line in self.records(records)))


class Sweeps(Case):
    def test_prefill(self):
        summary = self.json("--sweep", "prefill", "--prompts", "16,40", "--batches", "1,2",
                            "--chunks", "64", "--repeats", "2", "--floor")
        self.assertGreater(summary["peak_flops_per_second"], 1e9)
        self.assertEqual(summary["prefill_flops_per_token"], 26765312)
        self.assertEqual(len(summary["cells"]), 4)
        for cell in summary["cells"]:
            self.assertEqual((cell["kind"], cell["chunk"]), ("prefill", 64))
            self.assertEqual(cell["tokens_per_second"]["count"], 2)
            self.assertGreater(cell["of_floor"], 0)
            self.assertLess(cell["of_floor"], 1)
            self.assertEqual(cell["prompt_tokens"],
                             2 * cell["concurrency"] * cell["prompt_tokens_each"])

    def test_decode_and_its_conversion(self):
        records = str(self.dir / "r.jsonl")
        args = ["--sweep", "decode", "--contexts", "16", "--batches", "1,3", "--decode-tokens", "8",
                "--repeats", "1", "--records", records]
        summary = self.json(*args, "--draft", "off,fixed:2", "--floor")
        self.assertGreater(summary["read_bytes_per_second"], 1e8)
        self.assertEqual(len(summary["cells"]), 4)
        for cell in summary["cells"]:
            self.assertGreater(cell["tokens_per_second"]["median"], 0)
            self.assertGreater(cell["of_floor"], 0)
            self.assertEqual(cell["failed"], 0)
        fixed = [c for c in summary["cells"] if c["drafts"] == "fixed:2"]
        converted = self.json("--convert", records, "--acceptance", "0.5", "--draft", "fixed:2")
        for cell, one in zip(fixed, converted["cells"]):
            self.assertEqual(one["tokens_per_step"], 2.0)
            self.assertAlmostEqual(
                one["tokens_per_second"] / cell["tokens_per_second"]["median"],
                2 / cell["tokens_per_step"], places=6)
        self.ok("--convert", records, "--acceptance", "1")
        self.ok(*args, "--draft", "fixed:2,dynamic")
        self.fails(USAGE, "--convert", records, "--acceptance", "0.5", says="dynamic")

    def test_host(self):
        summary = self.json("--host", "--running", "1,8", "--decode-tokens", "6", "--repeats", "1")
        for cell in summary["cells"]:
            self.assertGreater(cell["steps"], 0)
            self.assertGreater(cell["plan_ms_per_step"], 0)
            self.assertTrue(0 <= cell["host_hidden_share"] <= 1)
            self.assertTrue(0 <= cell["device_idle_share"] <= 1)


class Curve(Case):
    def test_dynamic_holds_what_it_promises(self):
        plot = str(self.dir / "p.svg")
        summary = self.json("--curve", CURVE, "--check", "--repeats", "1", "--concurrency",
                            "1,16,60,96", "--pareto", plot)
        self.assertEqual(summary["breaches"], [])
        wins = {(v["drafts"], v["concurrency"]): v for v in summary["dynamic"]}
        self.assertGreater(wins["dynamic", 96]["over_fixed_5"],
                           wins["dynamic", 60]["over_fixed_5"])
        xml.parse(plot)

    def test_check_fails_where_it_must(self):
        # A device on which every row is free: nothing beats the longest draft.
        flat = self.file("flat.csv", "tokens,ms\n1,10\n1000,10.01\n")
        self.fails(FAILURE, "--curve", flat, "--check", "--repeats", "1", "--concurrency", "60,96",
                   says="does not beat fixed:5")

    def test_bad_curves(self):
        self.fails(FAILURE, "--curve", str(self.dir / "none"), says="none")
        self.fails(USAGE, "--curve", self.file("bad.csv", "tokens,ms\n1,x\n"), says="bad.csv")


class Usage(Case):
    def test_each_error_names_its_flag(self):
        for args, says in (
                (["--requests", "0"], "--requests"), (["--requests", "-3"], "--requests"),
                (["--rate", "-1"], "--rate"), (["--rate", "0"], "--rate"),
                (["--rate", "nan"], "--rate"), (["--concurrency", "0"], "--concurrency"),
                (["--concurrency", "1,x"], "--concurrency"), (["--prompt", "fixed:0"], "--prompt"),
                (["--output", "uniform:9-3"], "--output"), (["--shared-prefix", "1.5"], "--shared"),
                (["--temperature", "-1"], "--temperature"), (["--repeats", "0"], "--repeats"),
                (["--sweep"], "--sweep"), (["--sweep", "both"], "--sweep"),
                (["--sweep", "prefill", "--batches", ""], "--batches"),
                (["--draft", "often"], "--draft"), (["--draft", "fixed:-1"], "--draft"),
                (["--draft", "fixed:60", *SMALL], "60"),
                (["--chunk", "8", *SMALL], "--chunk: max_step_tokens is 8"),
                (["--sweep", "prefill", "--chunks", "1"], "--chunks: "),
                (["--rate", "1", "--concurrency", "1"], "--rate and --concurrency"),
                (["--rate", "1", "--pareto", "x.svg"], "--pareto"),
                (["--gaps"], "--records"), (["--host", "--sweep", "decode"], "--sweep and --host"),
                (["--sweep", "decode", "--rate", "1"], "--rate has no effect"),
                (["--curve", CURVE, "--requests", "5"], "--requests has no effect"),
                (["--check"], "--check has no effect"), (["--floor"], "--floor has no effect"),
                (["--workload", "x", "--requests", "5"], "--requests"),
                (["--workload", ""], "--workload"), (["--convert", "x"], "--acceptance"),
                (["--convert", "x", "--acceptance", "2"], "--acceptance")):
            with self.subTest(args=args):
                self.fails(USAGE, *args, says=says)

    def test_files_that_cannot_be_written(self):
        for flag in ("--records", "--pareto"):
            self.fails(FAILURE, flag, "/nonexistent/file", says="/nonexistent/file")


if __name__ == "__main__":
    unittest.main()
