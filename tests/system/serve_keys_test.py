"""Who may ask, and how much: keys and their limits."""
import hashlib
import pathlib
import tempfile
import threading
import unittest

from serve_process import (SCRIPTED, Server, anthropic_client, need_clients, openai_client, user,
                           wait_until)

need_clients()
import anthropic  # noqa: E402
import openai  # noqa: E402

KEYS = {"alice": "tm-alice-key", "bob": "tm-bob-key", "carol": "tm-carol-key", "root": "tm-root-key"}


def key_file(**more):
    """`more`: further lines of a name's entry."""
    return "".join(f'[[key]]\nname = "{name}"\n'
                   f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more.get(name, "")}\n'
                   for name, key in KEYS.items())


class Keys(unittest.TestCase):
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



if __name__ == "__main__":
    unittest.main()
