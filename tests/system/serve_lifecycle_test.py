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
        self.refuses("--model", str(self.dir), says="config.json")

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
        wait_until(lambda: "forty thieves" in server.log, "the body in the log")

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
        cls.server = Server(*SCRIPTED, "--api-key", str(path))
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
        with self.say("bob", "hang", stream=True, extra_headers={"X-Request-Timeout": "30"}):
            pass  # the stream opens with its first comment or token
        
    def test_budget(self):
        self.say("carol", "count", max_tokens=40)
        with self.assertRaises(openai.APIStatusError) as caught:
            self.say("carol")
        self.assertEqual(caught.exception.status_code, 402)
        self.assertEqual(caught.exception.code, "insufficient_balance")


if __name__ == "__main__":
    unittest.main()
