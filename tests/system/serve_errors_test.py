"""What is refused, how, and as which exception of the official clients."""
import json
import unittest

from serve_process import Server, anthropic_client, cases, need_clients, openai_client, user

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


if __name__ == "__main__":
    unittest.main()
