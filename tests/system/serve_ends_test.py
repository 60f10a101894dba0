"""How requests end before their answer does: clients that leave, time limits, overload, retries."""
import asyncio
import unittest

from serve_process import (PATIENCE, Case, Server, anthropic_client, need_clients, openai_client,
                           together, user)

need_clients()
import anthropic  # noqa: E402
import openai  # noqa: E402


class Ends(Case):
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
        kinds = (("chat/completions", {"messages": user("hang")}, "deadline_exceeded", "[DONE]"),
                 ("completions", {"prompt": "hang"}, "deadline_exceeded", "[DONE]"),
                 # The codes of Responses are a closed list.
                 ("responses", {"input": "hang"}, "server_error", "response.failed"),
                 ("messages", {"messages": user("hang"), "max_tokens": 9}, "timeout_error", "error"))

        def answer(kind):
            return self.server.post("/v1/" + kind[0], {**kind[1], "stream": True},
                                    X_Request_Timeout="0.9")

        for (path, _, error, last), got in zip(kinds, together(answer, kinds)):
            with self.subTest(path):
                self.assertEqual(got.status, 200)
                silence = "event: ping" if path == "messages" else ": keep-alive"
                self.assertGreaterEqual(got.text.count(silence), 2)
                self.assertIn(error, got.text)
                self.assertIn("no answer within", got.text)
                self.assertIn(last, got.events[-1])

    def test_an_overloaded_server(self):
        """The engine takes 12 requests; the next is told when to come again."""
        streams = together(lambda _: self.start("hang", stream=True), range(12))
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


if __name__ == "__main__":
    unittest.main()
