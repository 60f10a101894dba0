"""`tidemill load` against a scripted server: counts, latencies, failures, and its own honesty."""
import asyncio
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import unittest

TIDEMILL = os.environ["TIDEMILL"]
USAGE, FAILURE = 2, 1
FIRST_S, GAP_S = 0.12, 0.05  # of the scripted server: to the first chunk, between chunks
BEHAVIOURS = ["busy", "broken_text", "drops", "drops_at_once", "no_done", "event_error", "garbage",
              "plain", "not_http", "long_event", "ok", "no_usage", "old", "stalls", "silent"]


class Server:
    """Speaks HTTP and SSE by hand, as the prompt asks if that is the name of a behaviour, else one
    behaviour for each request in turn (the last one repeats).

    ok: role, CHUNKS words, finish, usage, [DONE]; comments between, written in odd pieces.
    """

    CHUNKS = 4

    def __init__(self, *behaviours, api_key=None):
        self.behaviours = list(behaviours) or ["ok"]
        self.api_key = api_key
        self.bodies, self.paths, self.connections, self.open, self.most_open = [], [], 0, 0, 0
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(ready,), daemon=True)
        self.thread.start()
        if not ready.wait(30):
            raise RuntimeError("the server did not start")

    def run(self, ready):
        asyncio.set_event_loop(self.loop)

        async def start():
            self.server = await asyncio.start_server(self.connection, "127.0.0.1", 0)
            self.url = "http://127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
            ready.set()

        self.loop.run_until_complete(start())
        self.loop.run_forever()
        self.server.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(asyncio.sleep(0))  # the sockets close in a turn of their own
        self.loop.close()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)

    async def connection(self, reader, writer):
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while await self.exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def exchange(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.splitlines()[0].split()
        headers = {name.strip().lower(): value.strip() for name, _, value in
                   (line.partition(":") for line in head.splitlines()[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.api_key and headers.get("authorization") != "Bearer " + self.api_key:
            return await self.answer(writer, 401, {"error": {"message": "wrong key"}})
        if method == "GET":
            return await self.answer(writer, 200, {"data": [{"id": "scripted"}]})
        self.paths.append(path)
        self.bodies.append(json.loads(body))
        content = self.bodies[-1].get("messages", [{}])[0].get("content")
        if content not in BEHAVIOURS:
            content = self.behaviours[0] if len(self.behaviours) == 1 else self.behaviours.pop(0)
        return await getattr(self, content)(writer)

    async def answer(self, writer, status, body):
        text = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (status, len(text), text))
        await writer.drain()
        return True

    async def send(self, writer, text):
        data = text.encode()
        for piece in (data[:7], data[7:]):
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()

    async def head(self, writer, extra=b""):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                     b"Transfer-Encoding: chunked\r\n" + extra + b"\r\n")
        await self.send(writer, ": keep-alive\n\n")

    def chunk(self, text=None, finish=None, **fields):
        chat = self.paths[-1].endswith("chat/completions")
        choice = {"delta": {} if text is None else {"content": text}} if chat else \
            {"text": text or ""}
        choice.update(index=0, finish_reason=finish)
        return "data: %s\r\n\r\n" % json.dumps({"choices": [choice], **fields})

    async def words(self, writer, count):
        await self.send(writer, 'data: {"choices": [{"delta": {"role": "assistant", '
                                '"content": ""}}], "usage": null}\n\n')
        await asyncio.sleep(FIRST_S)
        for i in range(count):
            if i > 0:
                await asyncio.sleep(GAP_S)
            await self.send(writer, self.chunk("word "))

    async def finish(self, writer, usage=True):
        await self.send(writer, self.chunk(finish="length"))
        if usage:
            usage = {"prompt_tokens": 20, "completion_tokens": self.CHUNKS * 2,
                     "prompt_tokens_details": {"cached_tokens": 5}}
            await self.send(writer, "data: %s\n\n" % json.dumps({"choices": [], "usage": usage}))

    async def ok(self, writer):
        await self.head(writer)
        await self.words(writer, self.CHUNKS)
        await self.finish(writer)
        await self.send(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def no_usage(self, writer):
        await self.head(writer)
        await self.words(writer, self.CHUNKS)
        await self.finish(writer, usage=False)
        await self.send(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return True

    async def old(self, writer):  # HTTP/1.0: until the connection closes
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" +
                     self.chunk("word").encode() + b"data: [DONE]\n\n")
        await writer.drain()
        return False

    async def no_done(self, writer):
        await self.head(writer)
        await self.words(writer, self.CHUNKS)
        await self.finish(writer)
        writer.write(b"0\r\n\r\n")
        return True

    async def drops(self, writer):
        await self.head(writer)
        await self.words(writer, 2)
        return False

    async def drops_at_once(self, writer):
        return False

    async def stalls(self, writer):
        await self.head(writer)
        await self.words(writer, 2)
        await asyncio.sleep(600)

    async def silent(self, writer):
        await asyncio.sleep(600)

    async def busy(self, writer):
        return await self.answer(writer, 429, {"error": {"message": "come back later"}})

    async def broken_text(self, writer):
        writer.write(b"HTTP/1.1 500 \xff\r\nContent-Length: 7\r\n\r\n\xff\xfe oops")
        return True

    async def event_error(self, writer):
        await self.head(writer)
        await self.send(writer, 'data: {"error": {"message": "out of blocks"}}\n\n')
        await self.send(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return True

    async def garbage(self, writer):
        await self.head(writer)
        await self.send(writer, "data: {nonsense\n\n")
        return False

    async def plain(self, writer):
        return await self.answer(writer, 200, {"choices": [{"message": {"content": "x"}}]})

    async def not_http(self, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        return False

    async def long_event(self, writer):
        await self.head(writer)
        data = b"x" * (1 << 16)
        writer.write(b"6\r\ndata: \r\n")
        for _ in range(80):
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        return False


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def server(self, *behaviours, **options):
        server = Server(*behaviours, **options)
        self.addCleanup(server.close)
        return server

    def file(self, name, text):
        path = self.dir / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def trace(self, items):
        return self.file("trace.jsonl", "".join(json.dumps({"t": t, "prompt": prompt}) + "\n"
                                                for t, prompt in items))

    def load(self, url, *args, env=None, **options):
        return subprocess.run([TIDEMILL, "load", "--url", url, *args], capture_output=True,
                              text=True, timeout=300, env={**os.environ, **(env or {})}, **options)

    def run_load(self, url, *args, code=0, **options):
        """The summary and the records, in the order of arrival."""
        out = self.dir / "records.jsonl"
        result = self.load(url, *args, "--json", "--out", str(out), **options)
        self.assertEqual(result.returncode, code, result.stderr)
        records = [json.loads(line) for line in out.read_text().splitlines()]
        return json.loads(result.stdout), sorted(records, key=lambda r: r["index"])

    def fails(self, code, *args, says="", url="http://127.0.0.1:9", **options):
        result = self.load(url, *args, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, r"\Atidemill: [^\n]+\n\Z")
        self.assertIn(says, result.stderr)


class Answers(Case):
    def test_latencies_and_counts(self):
        server = self.server("ok")
        summary, records = self.run_load(server.url, "--requests", "12", "--rate", "20", "--gaps",
                                         "--slo", "ttft=60s,itl=60s,e2e=60s")
        self.assertEqual(summary["requests"], {"planned": 12, "arrived": 12, "sent": 12, "ok": 12,
                                               "failed": 0, "aborted": 0})
        self.assertEqual(summary["model"], "scripted")
        self.assertEqual((summary["prompt_tokens"], summary["cached_tokens"],
                          summary["output_tokens"]), (240, 60, 96))
        self.assertEqual((summary["without_usage"], summary["failures"]), (0, []))
        self.assertEqual(summary["goodput"]["share"], 1)
        for record in records:
            self.assertEqual((record["outcome"], record["chunks"], record["finish"]),
                             ("ok", Server.CHUNKS, "length"))
            self.assertEqual(len(record["gaps_ms"]), Server.CHUNKS - 1)
            # True however late either side is: each chunk is sent so long after the request.
            self.assertGreaterEqual(record["sent_ms"], record["intended_ms"])
            from_sent = record["ttft_ms"] + record["intended_ms"] - record["sent_ms"]
            self.assertGreaterEqual(from_sent, 1000 * FIRST_S)
            whole = 1000 * (FIRST_S + GAP_S * (Server.CHUNKS - 1))
            self.assertGreaterEqual(from_sent + sum(record["gaps_ms"]), whole)
            self.assertGreaterEqual(record["e2e_ms"], whole)
            # Eight tokens in four chunks: seven times between tokens in the same seconds.
            self.assertAlmostEqual(record["tpot_ms"], sum(record["gaps_ms"]) / 7, places=6)
        self.assertEqual(summary["itl_ms"]["count"], 12 * (Server.CHUNKS - 1))
        self.assertGreater(summary["itl_ms"]["max"], 500 * GAP_S)
        self.assertLessEqual(summary["from_sent"]["ttft_ms"]["p50"],
                             summary["from_intended"]["ttft_ms"]["p50"])
        self.assertGreaterEqual(summary["from_sent"]["ttft_ms"]["p50"], 1000 * FIRST_S)

    def test_an_slo_that_cannot_be_met(self):
        server = self.server("ok", "ok", "busy")
        args = ["--requests", "4", "--rate", "50"]
        summary, _ = self.run_load(server.url, *args, "--slo", "ttft=%dms" % (1000 * FIRST_S - 1))
        self.assertEqual((summary["goodput"]["good"], summary["goodput"]["share"]), (0, 0))
        server = self.server("ok", "ok", "busy")
        summary, _ = self.run_load(server.url, *args, "--slo", "ttft=60s")
        self.assertEqual((summary["goodput"]["good"], summary["goodput"]["share"]), (2, 0.5))

    def test_completions_extra_key_and_prefix_of_the_url(self):
        server = self.server("ok", api_key="sesame")
        summary, _ = self.run_load(
            server.url + "/some/where/v1/", "--endpoint", "completions", "--requests", "3",
            "--rate", "50", "--ignore-eos", "--extra", '{"temperature": 0, "max_tokens": 7}',
            "--api-key-env", "THE_KEY", env={"THE_KEY": "sesame"})
        self.assertEqual(summary["requests"]["ok"], 3)
        self.assertEqual(set(server.paths), {"/some/where/v1/completions"})
        for body in server.bodies:
            self.assertIsInstance(body["prompt"], str)
            self.assertEqual((body["temperature"], body["max_tokens"], body["ignore_eos"]),
                             (0, 7, True))
        self.fails(FAILURE, "--requests", "1", url=server.url, says="HTTP 401: wrong key")

    def test_the_same_seed_sends_the_same(self):
        def bodies(*args):
            server = self.server("old")
            summary, records = self.run_load(server.url, "--model", "m", "--requests", "8",
                                             "--rate", "400", *args)
            self.assertEqual(summary["requests"]["ok"], 8)
            return ([r["intended_ms"] for r in records],
                    sorted(json.dumps(body) for body in server.bodies))

        first = bodies("--seed", "7")
        self.assertEqual(first, bodies("--seed", "7"))
        other = bodies("--seed", "8")
        self.assertNotEqual(first[0], other[0])
        self.assertNotEqual(first[1], other[1])

    def test_shared_prefixes(self):
        server = self.server("old")
        self.run_load(server.url, "--requests", "40", "--rate", "400", "--prefix-tokens", "30",
                      "--prefixes", "3", "--prompt-tokens", "5:9")
        prompts = [body["messages"][0]["content"].split() for body in server.bodies]
        self.assertEqual(len({tuple(prompt[:30]) for prompt in prompts}), 3)
        self.assertEqual(len({tuple(prompt) for prompt in prompts}), 40)
        self.assertTrue(all(35 <= len(prompt) <= 39 for prompt in prompts))

    def test_warmup_is_not_counted(self):
        server = self.server("ok")
        summary, _ = self.run_load(server.url, "--requests", "2", "--rate", "50", "--warmup", "3")
        self.assertEqual((summary["requests"]["ok"], len(server.bodies)), (2, 5))
        self.assertEqual(len({json.dumps(body) for body in server.bodies}), 5)
        self.fails(FAILURE, "--warmup", "2", url=self.server("busy").url, says="come back later")

    def test_duration_bounds_the_arrivals(self):
        server = self.server("old")
        summary, records = self.run_load(server.url, "--duration", "0.5", "--rate", "40",
                                         "--arrivals", "constant")
        self.assertEqual(summary["requests"]["ok"], 20)
        self.assertEqual([round(r["intended_ms"], 6) for r in records],
                         [25.0 * i for i in range(20)])

    def test_connections_are_used_again(self):
        server = self.server("ok")
        self.run_load(server.url, "--model", "m", "--requests", "4", "--rate", "100",
                      "--connections", "2")
        self.assertLessEqual(server.connections, 2)

    def test_tables(self):
        server = self.server("ok", "busy")
        result = self.load(server.url, "--requests", "5", "--rate", "50", "--slo", "ttft=10s")
        self.assertEqual(result.returncode, 0, result.stderr)
        for text in ("5 requests in", "1 ok, 4 failed", "4 x HTTP 429: come back later", "TTFT",
                     "ITL", "E2E", "send lag", "goodput (ttft=10000ms): 1 of 5", "arrivals: "):
            self.assertIn(text, result.stdout)


class Failures(Case):
    def test_each_is_counted_by_its_reason(self):
        kinds = BEHAVIOURS[:-2]
        server = self.server()
        summary, records = self.run_load(server.url, "--timeout", "60", "--trace",
                                         self.trace([(0.02 * i, k) for i, k in enumerate(kinds)]))
        got = dict(zip(kinds, ((r["outcome"], r.get("reason"), r["status"]) for r in records)))
        self.assertEqual(got, {
            "busy": ("error", "http", 429), "broken_text": ("error", "http", 500),
            "drops": ("error", "closed", 200),
            "drops_at_once": ("error", "closed", 0), "no_done": ("error", "no_done", 200),
            "event_error": ("error", "server_error", 200), "garbage": ("error", "bad_answer", 200),
            "plain": ("error", "bad_answer", 200), "not_http": ("error", "bad_answer", 0),
            "long_event": ("error", "too_large", 200), "ok": ("ok", None, 200),
            "no_usage": ("ok", None, 200), "old": ("ok", None, 200)})
        details = {kind: record.get("detail", "") for kind, record in zip(kinds, records)}
        self.assertEqual((details["busy"], details["event_error"]),
                         ("come back later", "out of blocks"))
        self.assertEqual(details["broken_text"], "\ufffd\ufffd oops")
        self.assertEqual((summary["requests"]["ok"], summary["requests"]["failed"]), (3, 10))
        self.assertEqual(sum(f["count"] for f in summary["failures"]), 10)
        self.assertEqual(summary["without_usage"], 2)
        self.assertEqual(summary["output_tokens"], 2 * Server.CHUNKS + Server.CHUNKS + 1)
        self.assertTrue(any("no usage" in note for note in summary["notes"]))

    def test_stalls_end_at_the_timeout(self):
        server = self.server()
        began = time.monotonic()
        trace = self.trace([(0, "stalls"), (0, "silent"), (0, "ok")])
        summary, records = self.run_load(server.url, "--trace", trace, "--timeout", "8")
        self.assertLess(time.monotonic() - began, 200)  # and not the server's 600
        self.assertEqual([r.get("reason") for r in records], ["timeout", "timeout", None])
        self.assertIn("2 chunks so far", records[0]["detail"])
        self.assertEqual((summary["requests"]["ok"], summary["requests"]["failed"]), (1, 2))
        for record in records[:2]:
            self.assertGreaterEqual(record["e2e_ms"], 8000 - 1)

    def test_nobody_listens(self):
        summary, _ = self.run_load("http://127.0.0.1:9", "--model", "m", "--requests", "3",
                                   "--rate", "50", code=FAILURE)
        self.assertEqual([(f["reason"], f["count"]) for f in summary["failures"]],
                         [("connect", 3)])
        self.fails(FAILURE, says="/v1/models: cannot connect")


class Honesty(Case):
    def test_too_few_connections(self):
        server = self.server("ok")
        summary, records = self.run_load(server.url, "--model", "m", "--connections", "1",
                                         "--trace", self.trace([(0, "any")] * 5),
                                         "--timeout", "100")
        self.assertEqual((summary["kept_up"], server.most_open), (False, 1))
        self.assertEqual([r["waited"] for r in records], [False, True, True, True, True])
        self.assertIn("could not keep up", summary["notes"][0])
        # The fifth waited for four answers, and its latency says so.
        least = 1000 * (FIRST_S + GAP_S * (Server.CHUNKS - 1))
        self.assertGreaterEqual(records[4]["ttft_ms"], 4 * least)
        self.assertGreater(summary["from_intended"]["ttft_ms"]["max"],
                           summary["from_sent"]["ttft_ms"]["max"])

    def test_no_connection_before_the_timeout(self):
        server = self.server("silent")
        trace = self.trace([(0, "any"), (0, "any")])
        summary, records = self.run_load(server.url, "--model", "m", "--trace", trace,
                                         "--connections", "1", "--timeout", "1", code=FAILURE)
        self.assertEqual([r["reason"] for r in records], ["timeout", "timeout"])
        self.assertIsNone(records[1]["sent_ms"])
        self.assertEqual((summary["requests"]["arrived"], summary["requests"]["sent"]), (2, 1))

    def test_poisson_arrivals_look_so(self):
        server = self.server("old")
        summary, _ = self.run_load(server.url, "--requests", "300", "--rate", "300")
        intended = summary["arrivals"]["intended"]
        self.assertTrue(intended["fits"])
        self.assertEqual(intended["count"], 299)
        self.assertAlmostEqual(intended["mean_gap_ms"], 1000 / 300, delta=0.6)
        self.assertAlmostEqual(intended["variation"], 1, delta=0.25)

    def test_interrupt_prints_what_is_there(self):
        server = self.server("ok", "ok", "silent")
        out = self.dir / "r.jsonl"
        command = [TIDEMILL, "load", "--url", server.url, "--rate", "20", "--arrivals", "constant",
                   "--requests", "100000", "--json", "--out", str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            end = time.monotonic() + 60
            while len(server.bodies) < 12 and time.monotonic() < end:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            text, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, FAILURE)
        summary = json.loads(text)
        self.assertTrue(summary["interrupted"])
        counts = summary["requests"]
        self.assertLessEqual(counts["ok"], 2)
        self.assertEqual(counts["failed"], 0)
        self.assertIn("interrupted; %d of 100000" % counts["ok"], errors)
        self.assertGreaterEqual(counts["aborted"], 10)
        self.assertEqual(counts["arrived"], counts["ok"] + counts["aborted"])
        self.assertEqual(len(out.read_text().splitlines()), counts["arrived"])


class Traces(Case):
    def test_replay(self):
        trace = self.file("t.jsonl", '{"t": 1000.3, "prompt": "third", "max_tokens": 3}\n\n'
                                     '{"t": 1000, "prompt_tokens": 12, "priority": -2}\n'
                                     '{"t": 1000.1, "messages": [{"role": "user", '
                                     '"content": "second"}], "other": 1}\n')
        server = self.server("old")
        summary, records = self.run_load(server.url, "--trace", trace, "--output-tokens", "50")
        self.assertEqual([round(r["intended_ms"], 3) for r in records], [0, 100, 300])
        self.assertEqual(summary["arrivals"]["process"], "trace")
        # They may overtake each other on their way.
        got = sorted((body["max_tokens"], body.get("priority", 0), body["messages"][0]["content"])
                     for body in server.bodies)
        self.assertEqual((got[0], got[2]), ((3, 0, "third"), (50, 0, "second")))
        self.assertEqual((got[1][:2], len(got[1][2].split())), ((50, -2), 12))
        summary, _ = self.run_load(server.url, "--trace", trace, "--duration", "0.2")
        self.assertEqual(summary["requests"]["planned"], 2)

    def test_bad_traces(self):
        for line in ("{", '{"prompt": "x"}', '{"t": 0, "prompt": 3}', '{"t": 1, "max_tokens": 0}',
                     '{"t": 1, "prompt": "x", "prompt_tokens": 3}', '{"t": 1, "messages": []}'):
            trace = self.file("bad.jsonl", '{"t": 0}\n' + line)
            self.fails(FAILURE, "--trace", trace, says="bad.jsonl:2: ")
        self.fails(FAILURE, "--trace", self.file("empty", "\n"), says="no requests")
        self.fails(FAILURE, "--trace", str(self.dir / "none"), says="none")
        trace = self.file("m.jsonl", '{"t": 0, "messages": [{}]}')
        self.fails(FAILURE, "--trace", trace, "--endpoint", "completions", says="messages")


class Usage(Case):
    def test_wrong_command_lines(self):
        for args, says in (
                (["--rate", "0"], "--rate"), (["--rate", "nan"], "--rate"),
                (["--arrivals", "x"], "--arrivals"), (["--slo", "ttft=5"], "--slo"),
                (["--slo", ""], "--slo"), (["--prompt-tokens", "9:3"], "--prompt-tokens"),
                (["--extra", "[]"], "--extra"), (["--extra", '{"stream": false}'], "stream"),
                (["--rate", "1", "--trace", "x"], "--trace"), (["--gaps"], "--out"),
                (["--prefixes", "2"], "--prefixes"), (["--timeout", "-1"], "--timeout"),
                (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE")):
            self.fails(USAGE, *args, says=says)
        self.fails(USAGE, url="https://127.0.0.1", says="TLS")
        self.fails(USAGE, url="127.0.0.1:8000", says="http://")
        self.fails(FAILURE, "--out", str(self.dir / "no" / "r"), says="no/r")

    def test_help_says_that_there_is_no_tls(self):
        text = subprocess.run([TIDEMILL, "load", "--help"], capture_output=True, text=True,
                              timeout=60).stdout
        self.assertIn("no https", text)


if __name__ == "__main__":
    unittest.main()
