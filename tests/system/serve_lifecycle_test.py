"""The start of a server, its settings and secrets; and its end, by SIGTERM or /drain."""
import json
import pathlib
import shutil
import signal
import subprocess
import threading
import time
import unittest

from serve_process import (MODEL, PATIENCE, TIDEMILL, Case, Server, need_clients, openai_client, user,
                           wait_until)

need_clients()
import openai  # noqa: E402

KEY = "tm-alice-key"


class Bare(Case):
    """User case 48: without flags and variables, in an empty directory."""

    def setUp(self):
        super().setUp()
        (self.dir / "bin").mkdir()
        self.program = shutil.copy(TIDEMILL, self.dir / "bin")
        self.empty = self.dir / "empty"
        self.empty.mkdir()

    def test_the_bundled_model_is_served(self):
        """`--port 0` alone: port 8000 may be another's."""
        (self.dir / "models").mkdir()
        (self.dir / "models" / "mini").symlink_to(pathlib.Path(MODEL).resolve())
        server = Server("--port", "0", program=(self.program, "serve"), directory=self.empty,
                        environment={"TIDEMILL_MODEL": ""})
        self.addCleanup(server.close)
        client = openai_client(server)
        model, = client.models.list()
        self.assertEqual(model.id, "mini")
        answer = client.chat.completions.create(model="mini", messages=user("Hello"), max_tokens=8,
                                                extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertFalse(hasattr(answer.choices[0].message, "reasoning_content"))  # it cannot think
        self.assertEqual(server.get("/").status, 200)
        server.signal()
        self.assertEqual(server.exit_code(), 0)
        self.assertEqual(list(self.empty.iterdir()), [])

    def test_a_missing_model_is_said(self):
        for command in (["serve", "--port", "0"], ["run", "Hello"], ["chat"]):
            with self.subTest(command):
                result = subprocess.run([self.program, *command], capture_output=True, text=True,
                                        timeout=PATIENCE, stdin=subprocess.DEVNULL, cwd=self.empty,
                                        env={"PATH": "/usr/bin:/bin"})
                self.assertIn(result.returncode, (1, 2), result.stderr)
                *_, last = result.stderr.splitlines()
                self.assertRegex(last, "^tidemill: .*--model")


class Settings(Case):
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
        server = self.serve("--api-key", "MY_KEY", environment={"MY_KEY": KEY})
        client = openai_client(server, KEY)
        client.chat.completions.create(model="mini", messages=user(f"say: {answer} {prompt}"))
        with self.assertRaises(openai.AuthenticationError):
            openai_client(server, "tm-wrong-key").models.list()
        told = server.get("/metrics").text + server.get("/").text
        told += json.dumps(server.status(Authorization="Bearer " + KEY))
        server.signal()
        self.assertEqual(server.exit_code(), 0)
        for text in (prompt, answer, KEY, "tm-wrong-key"):
            self.assertNotIn(text, server.log + told)

    def test_bodies_are_logged_when_asked_for(self):
        server = self.serve("--log-bodies")
        server.post("/v1/chat/completions", {"messages": user("say: forty thieves")})
        wait_until(lambda: "forty thieves" in server.log, "the body in the log", 10)

    def test_a_file_of_plain_keys_is_refused(self):
        told = self.refuses("--api-key", self.file("keys", KEY + "\n"), says="sha256")
        self.assertNotIn(KEY, told)


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
