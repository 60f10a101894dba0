"""From the start of a server to its end: settings, keys, time limits, cancels, retries, draining."""
import asyncio
import hashlib
import json
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from serve_process import (MODEL, PATIENCE, TIDEMILL, Server, anthropic_client, need_clients,
                           openai_client, user, wait_until)

need_clients()
import anthropic  # noqa: E402
import openai  # noqa: E402

SCRIPTED = ("--scripted", "0", "--port", "0", "--thinking", "off")
KEYS = {"alice": "tm-alice-key", "bob": "tm-bob-key", "carol": "tm-carol-key", "root": "tm-root-key"}


def key_file(**more):
    """`more`: further lines of a name's entry."""
    return "".join(f'[[key]]\nname = "{name}"\n'
                   f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more.get(name, "")}\n'
                   for name, key in KEYS.items())


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def file(self, name, text):
        path = self.dir / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return str(path)

    def serve(self, *flags, **options):
        server = Server(*SCRIPTED, *flags, **options)
        self.addCleanup(server.close)
        return server

    def refuses(self, *flags, says, environment={}):
        """The server does not start, and says in one line why."""
        result = subprocess.run([TIDEMILL, "serve", "--model", MODEL, *flags], capture_output=True,
                                text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
                                env={"PATH": "/usr/bin:/bin", **environment})
        self.assertIn(result.returncode, (1, 2), result.stderr)
        last = result.stderr.splitlines()[-1]
        self.assertRegex(last, "^tidemill: ")
        self.assertIn(says, last)
        return result.stdout + result.stderr


class Settings(Case):
    def options(self, server):
        """What the server says that it uses: value and source of each option."""
        lines = server.log.partition("options\n")[2].partition("tidemill:")[0].splitlines()
        return dict(line.strip().split(" = ") for line in lines)

    def test_flags_over_environment_over_file(self):
        config = self.file("serve.toml", 'keep-alive = 7\nmax-num-seqs = 3\ndrain-timeout = 9.5\n'
                                         'allowed_origins = ["https://a.example", "https://b.example"]\n'
                                         'hosted-sampling = true\n')
        server = self.serve("--config", config, "--keep-alive", "5",
                            environment={"TIDEMILL_KEEP_ALIVE": "6", "TIDEMILL_MAX_NUM_SEQS": "4"})
        options = self.options(server)
        for name, value in (("keep-alive", "5  (flag)"), ("max-num-seqs", "4  (TIDEMILL_MAX_NUM_SEQS)"),
                            ("drain-timeout", "9.5  (serve.toml)"), ("max-connections", "8192"),
                            ("allowed-origins", "https://a.example, https://b.example  (serve.toml)"),
                            ("hosted-sampling", "true  (serve.toml)")):
            self.assertEqual(options[name], value, name)
        headers = {"Origin": "https://b.example"}
        self.assertEqual(server.get("/version", **headers).headers["Access-Control-Allow-Origin"],
                         "https://b.example")
        self.assertEqual(server.get("/version", Origin="https://c.example").status, 403)

    def test_wrong_settings_are_named(self):
        for text, says in (("prot = 1\n", "prot"), ("\nport = 'x'\n", "port"), ("port = \n", ":1:"),
                           ("[engine]\nthreads = 1\n", "engine"), ("threads = 0\n", "threads"),
                           ("thinking = 'maybe'\n", "thinking"), ("port = 1979-05-27\n", "port")):
            with self.subTest(text):
                self.refuses("--config", self.file("serve.toml", text), says=says)
                self.refuses("--config", str(self.dir / "serve.toml"), says="serve.toml")
        self.refuses("--config", str(self.dir / "none.toml"), says="none.toml")
        self.refuses(says="TIDEMILL_THREADS", environment={"TIDEMILL_THREADS": "many"})
        self.refuses("--port", "70000", says="port")
        self.refuses("--api-key", str(self.dir / "none"), says="--api-key")

    def test_a_port_in_use(self):
        server = self.serve()
        self.refuses("--scripted", "0", "--port", server.url.rpartition(":")[2], says="in use")

    def test_names(self):
        server = self.serve("--served-model-name", "deepseek-flash", "other")
        client = openai_client(server)
        self.assertEqual([model.id for model in client.models.list()], ["deepseek-flash", "other"])
        for name in ("deepseek-flash", "other"):
            answer = client.chat.completions.create(model=name, messages=user("say: x"))
            self.assertEqual(answer.model, name)
        with self.assertRaises(openai.NotFoundError):
            client.chat.completions.create(model="mini", messages=user("say: x"))

    def test_secrets_are_not_told(self):
        """Neither keys nor prompts and answers are in the log, nor in what anyone may ask for."""
        prompt, answer = "open sesame", "forty thieves"
        server = self.serve("--api-key", "MY_KEY", environment={"MY_KEY": KEYS["alice"]})
        client = openai_client(server, KEYS["alice"])
        client.chat.completions.create(model="mini", messages=user(f"say: {answer} {prompt}"))
        with self.assertRaises(openai.AuthenticationError):
            openai_client(server, "tm-wrong-key").models.list()
        told = server.get("/metrics").text + server.get("/").text
        told += json.dumps(server.status(Authorization="Bearer " + KEYS["alice"]))
        server.signal()
        self.assertEqual(server.exit_code(), 0)
        for text in (prompt, answer, KEYS["alice"], "tm-wrong-key"):
            self.assertNotIn(text, server.log + told)

    def test_bodies_are_logged_when_asked_for(self):
        server = self.serve("--log-bodies")
        server.post("/v1/chat/completions", {"messages": user("say: forty thieves")})
        wait_until(lambda: "forty thieves" in server.log, "the body in the log", 10)

    def test_a_file_of_plain_keys_is_refused(self):
        told = self.refuses("--api-key", self.file("keys", KEYS["alice"] + "\n"), says="sha256")
        self.assertNotIn(KEYS["alice"], told)


class Keys(Case):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        path = pathlib.Path(cls.scratch.name) / "keys.toml"
        path.write_text(key_file(root="admin = true", bob="max_concurrent = 1",
                                 carol="budget_tokens = 30"))
        path.chmod(0o600)
        cls.server = Server(*SCRIPTED, "--api-key", str(path), "--keep-alive", "0.1")
        cls.addClassCleanup(cls.server.close)

    def client(self, name, **options):
        return openai_client(self.server, KEYS[name], **options)

    def say(self, name, text="say: x", **options):
        return self.client(name).chat.completions.create(model="mini", messages=user(text), **options)

    def test_unknown_keys(self):
        for key in ("tm-wrong", "none"):
            with self.assertRaises(openai.AuthenticationError) as caught:
                openai_client(self.server, key).models.list()
            self.assertEqual(caught.exception.status_code, 401)
            self.assertEqual(caught.exception.code, "invalid_api_key")
            with self.assertRaises(anthropic.AuthenticationError) as caught:
                anthropic_client(self.server, key).messages.create(
                    model="mini", max_tokens=1, messages=user("x"))
            self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
        bare = self.server.post("/v1/chat/completions", {"messages": user("say: x")})
        self.assertEqual(bare.status, 401)
        self.assertEqual(bare.headers["WWW-Authenticate"], "Bearer")
        for path in ("/health/live", "/health/ready", "/metrics", "/version"):
            self.assertEqual(self.server.get(path).status, 200, path)

    def test_both_headers(self):
        self.assertEqual(self.say("alice").choices[0].message.content, "x")
        message = anthropic_client(self.server, KEYS["alice"]).messages.create(
            model="mini", max_tokens=5, messages=user("say: x"))
        self.assertEqual(message.content[0].text, "x")
        bearer = anthropic_client(self.server, None, auth_token=KEYS["alice"])
        self.assertEqual(bearer.messages.count_tokens(model="mini", messages=user("x")).input_tokens,
                         len(self.tokens("x")))

    def tokens(self, text):
        return self.server.post("/tokenize", {"messages": user(text)},
                                Authorization="Bearer " + KEYS["alice"]).json["tokens"]

    def test_admin(self):
        for path, method in (("/v1/status", "GET"), ("/drain", "POST"), ("/v1/traces", "GET")):
            answer = self.server.get(path, method, Authorization="Bearer " + KEYS["alice"])
            self.assertEqual(answer.status, 403, path)
            self.assertEqual(answer.json["error"]["code"], "not_admin")
        self.assertEqual(self.server.get("/v1/status", x_api_key=KEYS["root"]).status, 200)
        with self.assertRaises(openai.PermissionDeniedError):
            self.client("alice").get("/status", cast_to=object)

    def test_usage_is_told_to_its_owner(self):
        used = self.say("alice").usage
        def rows(name):
            rows = self.server.get("/v1/usage", x_api_key=KEYS[name]).json["data"]
            return {row["client"]: row for row in rows}
        before = rows("alice")
        self.assertEqual(list(before), ["alice"])
        self.say("alice")
        after = wait_until(lambda: rows("alice") if rows("alice") != before else None, "its usage")
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(after["alice"][key] - before["alice"][key], getattr(used, key))
        self.assertLess({"alice"}, set(rows("root")))

    def test_concurrency(self):
        """One request of bob's at a time; the place is free again once its client has gone."""
        first = self.say("bob", "hang", stream=True)
        with self.assertRaises(openai.RateLimitError) as caught:
            self.say("bob")
        self.assertEqual(caught.exception.code, "rate_limit_exceeded")
        self.assertEqual(caught.exception.response.headers["Retry-After"], "1")
        with self.assertRaises(anthropic.RateLimitError) as caught:
            anthropic_client(self.server, KEYS["bob"]).messages.create(
                model="mini", max_tokens=1, messages=user("x"))
        self.assertEqual(caught.exception.body["error"]["type"], "rate_limit_error")
        self.say("alice")
        first.close()
        self.server.wait_for_idle(x_api_key=KEYS["root"])
        self.assertEqual(self.say("bob").choices[0].message.content, "x")

    def test_retries_wait_for_a_free_place(self):
        first = self.say("bob", "hang", stream=True)
        threading.Timer(0.3, first.close).start()
        answer = self.client("bob", max_retries=5).chat.completions.create(
            model="mini", messages=user("say: late"))
        self.assertEqual(answer.choices[0].message.content, "late")

    def test_budget(self):
        self.say("carol", "count", max_tokens=40)
        with self.assertRaises(openai.APIStatusError) as caught:
            self.say("carol")
        self.assertEqual(caught.exception.status_code, 402)
        self.assertEqual(caught.exception.code, "insufficient_balance")



class Ends(Case):
    """How requests end before their answer does."""

    @classmethod
    def setUpClass(cls):
        # Slow enough to be cut in the middle: 131,072 tokens of 1 ms.
        cls.server = Server("--scripted", "1", "--port", "0", "--thinking", "off",
                            "--keep-alive", "0.2", "--max-waiting", "12")
        cls.addClassCleanup(cls.server.close)
        cls.client = openai_client(cls.server)

    def start(self, text="count", client=None, **options):
        options = {"max_tokens": 100_000, **options}
        return (client or self.client).chat.completions.create(model="mini", messages=user(text),
                                                               **options)

    def aborts_of(self, action):
        """By how much action() raises the number of aborts by clients; all is idle before it."""
        name = 'tidemill:requests_aborted_total{reason="client_gone"}'
        before = self.server.metrics().get(name, 0)
        action()
        status = self.server.wait_for_idle()
        metrics = self.server.metrics()
        self.assertEqual(metrics["vllm:num_requests_running"], 0)
        self.assertEqual(metrics["tidemill:requests_in_flight"], 0)
        self.assertEqual(metrics["tidemill:streams"], 0)
        return metrics.get(name, 0) - before, status["recent"]

    def test_a_closed_stream(self):
        def action():
            stream = self.start(stream=True, n=4)
            for _, chunk in zip(range(12), stream):
                pass
            stream.close()

        aborts, recent = self.aborts_of(action)
        self.assertEqual(aborts, 1)
        self.assertEqual((recent[0]["outcome"], recent[0]["reason"]), ("abort", "client_gone"))
        self.assertGreater(recent[0]["output_tokens"], 2)  # billed: what was computed
        self.assertLess(recent[0]["output_tokens"], 50_000)
        self.assertGreater(recent[0]["prompt_tokens"], 0)

    def test_closed_streams_of_the_other_protocols(self):
        def responses():
            with self.client.responses.create(model="mini", input="count", stream=True) as stream:
                for _, event in zip(range(8), stream):
                    pass

        def messages():
            with anthropic_client(self.server).messages.stream(
                    model="mini", max_tokens=100_000, messages=user("count")) as stream:
                for _, event in zip(range(8), stream):
                    pass

        def completions():
            of = openai_client(self.server, _strict_response_validation=False)
            with of.completions.create(model="mini", prompt="count", max_tokens=100_000,
                                       stream=True) as stream:
                for _, event in zip(range(8), stream):
                    pass

        for action in (responses, messages, completions):
            with self.subTest(action.__name__):
                self.assertEqual(self.aborts_of(action)[0], 1)

    def test_a_cancelled_task(self):
        """asyncio's way, in the middle of a stream and of an answer that comes whole."""
        async def one(stream):
            async with openai_client(self.server, asynchronous=True) as client:
                async def read():
                    answer = await self.start(client=client, stream=stream)
                    async for chunk in answer:
                        began.set()

                began = asyncio.Event()
                task = asyncio.create_task(read())
                if stream:
                    await asyncio.wait_for(began.wait(), PATIENCE)
                else:
                    while self.server.status()["engine"]["running"] == 0:
                        await asyncio.sleep(0.01)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        for stream in (False, True):
            with self.subTest(stream=stream):
                self.assertEqual(self.aborts_of(lambda: asyncio.run(one(stream)))[0], 1)

    def test_the_clients_own_timeout(self):
        def action():
            for text in ("hang", "count"):
                with self.assertRaises(openai.APITimeoutError):
                    self.start(text, timeout=0.3)
            with self.assertRaises(anthropic.APITimeoutError):
                anthropic_client(self.server).messages.create(
                    model="mini", max_tokens=9, messages=user("hang"), timeout=0.3)

        self.assertEqual(self.aborts_of(action)[0], 3)

    def test_the_request_names_its_time(self):
        limit = {"extra_headers": {"X-Request-Timeout": "0.4"}}
        with self.assertRaises(openai.InternalServerError) as caught:
            self.start("hang", **limit)
        self.assertEqual(caught.exception.status_code, 503)
        self.assertEqual(caught.exception.code, "deadline_exceeded")
        with self.assertRaises(openai.InternalServerError) as caught:
            self.start("count", **limit)  # has begun
        self.assertEqual(caught.exception.status_code, 504)
        got = 0
        with self.assertRaises(openai.APIError) as caught:
            for chunk in self.start("count", stream=True, **limit):
                got += 1
        self.assertGreater(got, 5)
        self.assertEqual(caught.exception.code, "deadline_exceeded")
        for value in ("0", "-1", "soon", "nan", "1e9"):
            with self.subTest(value):
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.start("say: x", extra_headers={"X-Request-Timeout": value})
                self.assertIn("X-Request-Timeout", caught.exception.message)
        self.server.wait_for_idle()

    def test_silence_is_broken(self):
        """Comments and pings while nothing comes; an error behind them is still an event."""
        for path, body, comment, last in (
                ("chat/completions", {"messages": user("hang")}, ": keep-alive", "[DONE]"),
                ("completions", {"prompt": "hang"}, ": keep-alive", "[DONE]"),
                ("responses", {"input": "hang"}, ": keep-alive", "response.failed"),
                ("messages", {"messages": user("hang"), "max_tokens": 9}, "event: ping", "error")):
            with self.subTest(path):
                answer = self.server.post("/v1/" + path, {**body, "stream": True},
                                          X_Request_Timeout="0.9")
                self.assertEqual(answer.status, 200)
                self.assertGreaterEqual(answer.text.count(comment), 2)
                self.assertIn("deadline_exceeded" if path != "messages" else "timeout_error",
                              answer.text)
                self.assertIn(last, answer.events[-1])

    def test_an_overloaded_server(self):
        """The engine takes 12 requests; the next is told when to come again."""
        streams = [self.start("hang", stream=True) for _ in range(12)]
        try:
            with self.assertRaises(openai.InternalServerError) as caught:
                self.start("say: x")
            self.assertEqual(caught.exception.status_code, 503)
            self.assertEqual(caught.exception.code, "overloaded")
            self.assertGreaterEqual(int(caught.exception.response.headers["Retry-After"]), 1)
            with self.assertRaises(anthropic.APIStatusError) as caught:
                anthropic_client(self.server).messages.create(model="mini", max_tokens=9,
                                                              messages=user("say: x"))
            self.assertEqual(caught.exception.body["error"]["type"], "overloaded_error")
        finally:
            for stream in streams:
                stream.close()
        self.server.wait_for_idle()


class Retries(Case):
    def test_an_idempotency_key(self):
        """The same request under the same key is computed once, whole or streamed."""
        server = self.serve()
        client = openai_client(server)
        for stream in (False, True):
            with self.subTest(stream=stream):
                headers = {"Idempotency-Key": f"key {stream}"}
                body = {"model": "mini", "messages": user("count"), "max_tokens": 9, "stream": stream}
                first, again = (server.post("/v1/chat/completions", body, **headers)
                                for _ in range(2))
                self.assertEqual(first.text, again.text)
                self.assertNotIn("Idempotent-Replayed", first.headers)
                self.assertEqual(again.headers["Idempotent-Replayed"], "true")
                with self.assertRaises(openai.UnprocessableEntityError):
                    client.chat.completions.create(model="mini", messages=user("other"),
                                                   extra_headers=headers)
        ids = {client.chat.completions.create(model="mini", messages=user("count"), max_tokens=9,
                                              extra_headers={"Idempotency-Key": "k"}).id
               for _ in range(3)}
        self.assertEqual(len(ids), 1)
        status = server.wait_for_idle()
        self.assertEqual(status["totals"]["output_tokens"], 27)

    def test_while_the_first_is_at_work(self):
        server = self.serve("--keep-alive", "0.1")
        client = openai_client(server)
        body = {"model": "mini", "messages": user("hang"), "extra_headers": {"Idempotency-Key": "k"}}
        with client.chat.completions.create(stream=True, **body):
            with self.assertRaises(openai.ConflictError):
                client.chat.completions.create(stream=True, **body)
        server.wait_for_idle()

    def test_an_aborted_request_may_come_again(self):
        server = self.serve()
        body = {"messages": user("hang")}
        for _ in range(2):
            answer = server.post("/v1/chat/completions", body, Idempotency_Key="k",
                                 X_Request_Timeout="0.2")
            self.assertEqual(answer.status, 503)
            self.assertNotIn("Idempotent-Replayed", answer.headers)


class Drain(Case):
    def test_eight_streams_of_which_one_is_endless(self):
        server = Server("--scripted", "20", "--port", "0", "--thinking", "off", "--keep-alive", "0.1",
                        "--drain-timeout", "2")
        self.addCleanup(server.close)
        client = openai_client(server, _strict_response_validation=False)
        answers, errors = [], []

        def read(stream):
            try:
                answers.append("".join(c.delta.content for chunk in stream for c in chunk.choices))
            except openai.APIError as error:
                errors.append(error)

        threads = []
        for i in range(8):
            text, tokens = ("hang", 9) if i == 7 else ("count", 40)
            stream = client.chat.completions.create(model="mini", messages=user(text), stream=True,
                                                    max_tokens=tokens)
            threads.append(threading.Thread(target=read, args=[stream]))
            threads[-1].start()
        raw, response = server.open("POST", "/v1/chat/completions",
                                    {"messages": user("hang"), "stream": True})
        begin = time.monotonic()
        server.signal()
        wait_until(lambda: server.get("/health/ready").status == 503, "that it is not ready", 1)
        self.assertEqual(server.get("/health/live").status, 200)
        with self.assertRaises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="mini", messages=user("say: x"))
        self.assertEqual(caught.exception.status_code, 503)
        self.assertEqual(caught.exception.code, "draining")
        self.assertGreaterEqual(int(caught.exception.response.headers["Retry-After"]), 1)
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(server.exit_code(), 0)
        self.assertGreater(time.monotonic() - begin, 1.9)
        self.assertEqual(len(answers), 7)
        self.assertEqual(len(set(answers)), 1)
        self.assertTrue(answers[0].endswith("39"))
        self.assertEqual(errors[0].type, "server_error")
        text = response.read().decode()
        raw.close()
        *_, error, done, end = text.split("\n\n")
        self.assertEqual((done, end), ("data: [DONE]", ""))
        self.assertIn("error", json.loads(error.removeprefix("data: ")))

    def test_nothing_to_wait_for(self):
        for stop in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(stop):
                server = self.serve("--drain-timeout", "600")
                server.signal(stop)
                self.assertEqual(server.exit_code(), 0)

    def test_as_soon_as_the_last_one_has_ended(self):
        server = self.serve("--drain-timeout", "600", "--keep-alive", "0.1")
        with openai_client(server).chat.completions.create(model="mini", messages=user("hang"),
                                                           stream=True):
            server.signal()
            wait_until(lambda: server.get("/health/ready").status == 503, "the drain")
        self.assertEqual(server.exit_code(), 0)

    def test_a_second_signal_stops_at_once(self):
        server = self.serve("--drain-timeout", "600", "--keep-alive", "0.1")
        with openai_client(server).chat.completions.create(model="mini", messages=user("hang"),
                                                           stream=True) as stream:
            server.signal()
            wait_until(lambda: server.get("/health/ready").status == 503, "the drain")
            server.signal()
            with self.assertRaises(openai.APIError):
                for _ in stream:
                    pass
        self.assertEqual(server.exit_code(), 0)

    def test_by_request(self):
        server = self.serve()
        self.assertTrue(server.post("/drain", {}).json["draining"])
        self.assertEqual(server.get("/health/ready").status, 503)
        self.assertEqual(server.post("/v1/messages", {}).status, 503)
        self.assertEqual(server.metrics()["tidemill:draining"], 1)


if __name__ == "__main__":
    unittest.main()
