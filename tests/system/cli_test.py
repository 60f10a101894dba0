"""`tidemill` as a script meets it: output, exit codes, and one line for every error."""
import array
import json
import math
import os
import pathlib
import pty
import re
import resource
import select
import signal
import subprocess
import tempfile
import time
import unittest

TIDEMILL = os.environ["TIDEMILL"]
MODEL = str(pathlib.Path(os.environ["TIDEMILL_SOURCE_DIR"]) / "models" / "mini")
VOCAB = 8192
USAGE, FAILURE = 2, 1


def tidemill(*args, stdin="", **options):
    command = [TIDEMILL, *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "TIDEMILL_MODEL": MODEL}, **options)


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
        result = tidemill(*args, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def fails(self, code, *args, says="", **options):
        result = tidemill(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, r"\Atidemill: [^\n]+\n\Z")
        self.assertIn(says, result.stderr)
        return result


class Usage(Case):
    def test_help_and_version(self):
        self.assertIn("tokenize", self.ok("--help"))
        self.assertRegex(self.ok("--version"), r"^\d+\.\d+\.\d+\n$")

    def test_wrong_command_lines(self):
        for args in ([], ["nosuch"], ["run", "--bogus", "x"], ["run", "--draft", "6", "x"],
                     ["run", "--draft", "x", "x"], ["run", "--threads", "0", "x"],
                     ["run", "--threads", "99999", "x"], ["run", "--max-tokens", "0", "x"],
                     ["run", "--seed", "-1", "x"], ["run", "--temperature", "nan", "x"],
                     ["run", "--temperature", "-1", "x"], ["run", "--top-p", "0", "x"],
                     ["run", "--replay", "x", "x"], ["run", "--replay", "-1", "x"], ["run", "--replay", "127", "x"], ["run", "--backend", "gpu", "x"],
                     ["run", "--rounding", "none", "x"], ["run", ""], ["score"],
                     ["score", "--tokens", "x", "--chunk", "0"],
                     ["score", "--tokens", "x", "--chunk", "9", "--decode"],
                     ["tokenize", "--json", "x"]):
            with self.subTest(args=args):
                self.fails(USAGE, *args)

    def test_model_directories(self):
        self.fails(FAILURE, "run", "--model", str(self.dir / "none"), "x", says="none")
        self.fails(FAILURE, "inspect", "--model", str(self.dir), says="config.json")
        self.fails(FAILURE, "encode", "--model", str(self.dir), says="tokenizer.json")

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([TIDEMILL, "tokenize", "--model", MODEL, "x"], stdout=full,
                                    stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, FAILURE)
        self.assertIn("No space left", result.stderr)


class Text(Case):
    def test_tokenize_there_and_back(self):
        texts = ["The sea was calm.", "", "é 水 😀\n\t x", "<｜User｜>"]
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        ids = self.ok("tokenize", "--json", stdin=lines)
        back = self.ok("tokenize", "--json", "--decode", stdin=ids)
        self.assertEqual([json.loads(line) for line in back.splitlines()], texts)
        # A user's text never becomes a special token; the operator's may.
        plain, added = (json.loads(self.ok("tokenize", "--json", *flag, stdin='"<｜User｜>"\n'))
                        for flag in ([], ["--added-tokens"]))
        self.assertGreater(len(plain), 1)
        self.assertEqual(len(added), 1)

    def test_tokenize_for_people(self):
        lines = self.ok("tokenize", "two\nlines").splitlines()
        ids = " ".join(line.split("\t")[0] for line in lines)
        self.assertEqual(self.ok("tokenize", "--decode", stdin=ids), "two\nlines")

    def test_tokenize_errors_name_the_line(self):
        self.fails(FAILURE, "tokenize", "--json", stdin='"a"\n{\n', says="line 2")
        self.fails(FAILURE, "tokenize", "--json", stdin="7\n", says="not a JSON string")
        self.fails(FAILURE, "tokenize", "--json", "--decode", stdin="[1, 99999]", says="99999")
        self.fails(FAILURE, "tokenize", "--json", "--decode", stdin="[-1]", says="-1")
        self.fails(FAILURE, "tokenize", "--decode", stdin="1 x", says="'x'")

    def test_encode(self):
        request = {"messages": [{"role": "user", "content": "Hello"}], "thinking": {"type": "disabled"}}
        answer = json.loads(self.ok("encode", stdin=json.dumps(request)))
        self.assertEqual(answer["prompt"],
                         "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>")
        self.assertEqual(answer["ids"][0], 0)
        self.fails(FAILURE, "encode", stdin="{", says="JSON")
        self.fails(FAILURE, "encode", stdin='{"messages": 3}', says="messages")

    def test_text_commands_need_no_weights(self):
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            self.file(name, (pathlib.Path(MODEL) / name).read_text(encoding="utf-8"))
        self.ok("tokenize", "--model", str(self.dir), "x")
        self.ok("encode", "--model", str(self.dir),
                stdin='{"messages": [{"role": "user", "content": "x"}]}')


class Run(Case):
    def answer(self, *args):
        return json.loads(self.ok("run", "--json", "--max-tokens", "24", *args, "Hello"))

    def test_json(self):
        answer = self.answer("--seed", "5", "--draft", "3")
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], len(answer["ids"]))
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + len(answer["ids"]))
        self.assertIn(answer["finish_reason"], ("stop", "length"))
        self.assertEqual(answer["seed"], 5)
        for proposed, accepted in zip(answer["drafts"]["proposed"], answer["drafts"]["accepted"]):
            self.assertLessEqual(accepted, proposed)
        decoded = self.ok("tokenize", "--json", "--decode", stdin=json.dumps(answer["ids"]))
        self.assertEqual(json.loads(decoded).strip(), answer["text"].strip())

    def test_tokens_depend_on_the_seed_only(self):
        first = self.answer("--seed", "5")["ids"]
        for args in (["--draft", "1"], ["--draft", "5"], ["--threads", "1"], ["--threads", "2"],
                     ["--threads", "3", "--draft", "2"], ["--chunk", "40"]):
            with self.subTest(args=args):
                self.assertEqual(self.answer("--seed", "5", *args)["ids"], first)
        penalty = ["--seed", "5", "--repetition-penalty", "1.3"]
        self.assertEqual(self.answer(*penalty)["ids"], self.answer(*penalty, "--draft", "4")["ids"])

    def test_stream_equals_json(self):
        flags = ["--temperature", "0"]
        streamed = self.ok("run", "--max-tokens", "24", *flags, stdin="Hello\n")
        self.assertEqual(streamed, self.answer(*flags)["text"] + "\n")

    def test_context_is_a_limit(self):
        self.fails(FAILURE, "run", stdin="word " * 20000, says="16384")
        self.fails(FAILURE, "run", "--max-tokens", "16384", "x", says="16384")
        # The default number of tokens gives way.
        self.ok("run", "--context", "64", "Hello")

    def test_time_is_a_limit(self):
        # An answer that cannot end before.
        schema = self.file("schema", json.dumps({"type": "array", "items": {"type": "boolean"}, "minItems": 6000}))
        result = self.fails(FAILURE, "run", "--timeout", "1.5", "--max-tokens", "16000",
                            "--json-schema", schema, "Hello", says="deadline")
        self.assertNotEqual(result.stdout.strip(), "")  # as far as it went

    def test_constraints(self):
        schema = self.file("schema", json.dumps(
            {"type": "object", "properties": {"age": {"type": "integer", "minimum": 7, "maximum": 9}},
             "required": ["age"], "additionalProperties": False}))
        grammar = self.file("grammar", 'root ::= "yes" | "no"\n')
        for args, holds in ((["--json-schema", schema], lambda text: json.loads(text)["age"] in (7, 8, 9)),
                            (["--regex", "[ab]{3}c?"], lambda text: re.fullmatch("[ab]{3}c?", text)),
                            (["--ebnf", grammar], lambda text: text in ("yes", "no")),
                            (["--json-object", "--max-tokens", "200"], lambda text: text.startswith("{"))):
            with self.subTest(args=args):
                plain, drafted = (json.loads(self.ok("run", "--json", "--seed", "3", *args, *draft, "Hello"))
                                  for draft in ([], ["--draft", "3"]))
                self.assertTrue(holds(plain["text"]), plain["text"])
                self.assertEqual(plain["ids"], drafted["ids"])

    def test_stop_string(self):
        flags = ["--raw", "--temperature", "0", "--max-tokens", "40", "--json", "Once upon a time"]
        whole = json.loads(self.ok("run", *flags))["text"]
        stop = whole[len(whole) // 2:][:4]
        stopped = json.loads(self.ok("run", "--stop", "not to be found", "--stop", stop, *flags))
        self.assertEqual(stopped["text"], whole[:whole.index(stop)])
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_choices(self):
        one = self.answer("--seed", "5")
        three = self.answer("--seed", "5", "--n", "3")
        self.assertEqual(len(three["choices"]), 3)
        self.assertEqual(three["ids"], one["ids"])
        self.assertEqual(three["choices"][0]["ids"], one["ids"])
        self.assertEqual(three["choices"][2]["ids"], self.answer("--seed", "7")["ids"])
        self.assertNotIn("choices", one)
        lines = self.ok("run", "--n", "2", "--regex", "[ab]{4}", "Hello").splitlines()
        self.assertEqual([lines[0], lines[2], len(lines)], ["[1]", "[2]", 4])

    def test_interrupt(self):
        """What has come by then is printed, and a script that runs this stops too."""
        process = subprocess.Popen([TIDEMILL, "run", "--model", MODEL, "--max-tokens", "16000",
                                    "--temperature", "5", "Hello"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            first = process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertTrue((first + rest).endswith(b"\n"))
        self.assertEqual(errors, b"")

    def test_bad_requests(self):
        self.fails(FAILURE, "run", "--timeout", "0.001", "word " * 3000, says="deadline")
        self.fails(FAILURE, "run", "--timeout", "nan", "x", says="nan")
        self.fails(FAILURE, "run", *["--stop", "a"] * 65, "x", says="64")
        for args in (["--max-tokens", "0"], ["--max-tokens", "-1"], ["--max-tokens", "1" + "0" * 30],
                     ["--n", "0"], ["--n", "-1"], ["--n", "1000000"], ["--stop", ""],
                     ["--timeout", "0"],
                     ["--draft", "fixed:6"], ["--json-object", "--regex", "a"]):
            with self.subTest(args=args):
                self.fails(USAGE, "run", *args, "x")

    def test_bad_constraints(self):
        unsatisfiable = {"type": "integer", "minimum": 2, "maximum": 1}
        deep = '{"items": ' * 5000 + "{}" + "}" * 5000
        for flag, text, says in (("--json-schema", json.dumps(unsatisfiable), "m"),
                                 ("--json-schema", json.dumps({"description": "x" * (5 << 20)}), "1048576"),
                                 ("--json-schema", deep, "deep"), ("--json-schema", "[" * 100_000, "deep"),
                                 ("--json-schema", "{", "JSON"), ("--json-schema", "", "JSON"),
                                 ("--ebnf", "root ::= root", "never ends"), ("--ebnf", 'leaf ::= "a"', "root")):
            with self.subTest(flag=flag, text=text[:40]):
                result = self.fails(FAILURE, "run", flag, self.file("constraint", text), "x", says=says)
                self.assertEqual(result.stdout, "")
        self.fails(FAILURE, "run", "--json-schema", str(self.dir / "none"), "x", says="none")
        for pattern in ("(", "[z-a]", "(?<=a)b", "((a{1,1000}){1,1000}){1,1000}", "(" * 5000 + ")" * 5000):
            with self.subTest(pattern=pattern[:40]):
                self.fails(FAILURE, "run", "--regex", pattern, "x")
        # What backtracking matchers die of is no trouble here.
        self.assertRegex(self.ok("run", "--regex", "(a|aa)*(a*)*b{2}", "--max-tokens", "50", "x"), "^a*b*\n$")


class Score(Case):
    def lines(self, *args, **options):
        return [json.loads(line) for line in self.ok("score", *args, **options).splitlines()]

    def logits(self, path, rows):
        data = pathlib.Path(path).read_bytes()
        self.assertIn(f"'shape': ({rows}, {VOCAB})".encode(), data[:128])
        self.assertEqual(len(data), 128 + 4 * rows * VOCAB)
        return array.array("f", data[128:])

    def test_inputs(self):
        one = self.lines("--tokens", self.file("a", "[0, 51,\n 1044, 16]"))
        self.assertEqual([line["tokens"] for line in one], [4])
        many = self.lines("--tokens", "-", stdin='{"tokens": [0, 51, 1044, 16]}\n\n[0]\n{"text": "The sea"}\n')
        self.assertEqual(many[0]["nll"], one[0]["nll"])
        self.assertIsNone(many[1]["ppl"])
        self.assertEqual(many[2]["scored"], many[2]["tokens"] - 1)

    def test_every_way_of_feeding_gives_the_same_logits(self):
        ids = self.file("ids", json.dumps([0] + [7 * i % 8000 for i in range(3, 40)]))
        out = str(self.dir / "out.npy")
        self.lines("--tokens", ids, "--logits", out)
        whole = self.logits(out, 38)
        for args in (["--decode"], ["--chunk", "7"], ["--threads", "1"], ["--prompt", "11"]):
            with self.subTest(args=args):
                self.lines("--tokens", ids, "--logits", out, *args)
                self.assertEqual(self.logits(out, 38).tobytes(), whole.tobytes())

    def test_replay_keeps_the_end(self):
        ids = self.file("ids", json.dumps([0] + [7 * i % 8000 for i in range(3, 202)]))
        out = str(self.dir / "out.npy")
        line, = self.lines("--tokens", ids, "--replay", "128", "--prompt", "190", "--logits", out)
        replayed = self.logits(out, 128 + 10)
        self.assertEqual(line["scored"], 10)
        self.lines("--tokens", ids, "--replay", "128", "--prompt", "190", "--logits", out,
                   "--chunk", "33")
        self.assertEqual(self.logits(out, 128 + 10).tobytes(), replayed.tobytes())
        # All of a short prompt is kept: nothing changes.
        exact, same = (self.lines("--tokens", ids, "--prompt", "100", "--replay", keep)[0]["nll"]
                       for keep in ("off", "128"))
        self.assertEqual(exact, same)

    def test_bad_input(self):
        for text in ("", "[]", "[0.5]", "[[0]]", "[8192]", "{}", '{"text": 1}', "[0", "\xff"):
            with self.subTest(text=text):
                self.fails(FAILURE, "score", "--tokens", self.file("ids", text))
        self.fails(FAILURE, "score", "--tokens", "-", stdin="[0]\n[0, 8192]\n", says=":2: ")
        self.fails(FAILURE, "score", "--tokens", str(self.dir), says="directory")
        self.fails(FAILURE, "score", "--tokens", "-", "--logits", "/dev/full", stdin="[0]",
                   says="not a regular file")

    def test_a_full_disk_leaves_nothing(self):
        ids = self.file("ids", json.dumps([0] * 40))
        out = self.dir / "logits" / "out.npy"
        out.parent.mkdir()
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.fails(FAILURE, "score", "--tokens", ids, "--logits", str(out), says="after 100000 bytes",
                   preexec_fn=limit)
        self.assertEqual(list(out.parent.iterdir()), [])


class DraftAndInspect(Case):
    def test_draft(self):
        answer = json.loads(self.ok("draft", "--tokens", "-", stdin="[0, 51, 1044, 16]"))
        self.assertEqual(len(answer["drafts"]), 5)
        self.assertEqual([top[0]["id"] for top in answer["top"]], answer["drafts"])
        self.assertEqual([len(top) for top in answer["top"]], [5] * 5)
        self.assertEqual(len(answer["confidence"]), 5)
        self.fails(FAILURE, "draft", "--tokens", "-", "--anchor", "8192", stdin="[0]", says="8192")

    def test_inspect(self):
        report = json.loads(self.ok("inspect", "--json"))
        self.assertEqual(report["total"]["bytes"], sum(kind["bytes"] for kind in report["kinds"].values()))
        self.assertNotIn("other", report["kinds"])
        self.assertEqual(len(report["layers"]), 12)
        # Scales are no parameters, and a byte of FP4 holds two.
        backbone = drafter = 0
        for file in pathlib.Path(MODEL).glob("*.safetensors"):
            with file.open("rb") as data:
                header = json.loads(data.read(int.from_bytes(data.read(8), "little")))
            for name, tensor in header.items():
                if name != "__metadata__" and not name.endswith(".scale"):
                    count = math.prod(tensor["shape"]) * (2 if tensor["dtype"] == "I8" else 1)
                    if name.startswith("mtp."):
                        drafter += count
                    else:
                        backbone += count
        self.assertEqual(report["kinds"]["drafter"]["parameters"], drafter)
        self.assertEqual(report["total"]["parameters"], backbone + drafter)
        self.assertIn("routed experts", self.ok("inspect"))


class LittleMemory(Case):
    def test_the_answer_is_the_same_with_fewer_experts_in_memory(self):
        little = json.loads(self.ok("inspect", "--json"))["little_memory"]
        self.assertLess(little["least_bytes"], little["always_bytes"] + little["expert_bytes"])
        ask = ("run", "--temperature", "0", "--max-tokens", "40", "The sea")
        expected = self.ok(*ask)
        for memory in (little["least_bytes"], little["always_bytes"] + little["expert_bytes"] // 2):
            self.assertEqual(self.ok(*ask, "--memory", str(memory)), expected)
        self.fails(USAGE, *ask, "--memory", str(little["least_bytes"] - 1), says=str(little["least_bytes"]))


class HugePages(Case):
    def test_the_answer_is_the_same_and_paged_weights_exclude_them(self):
        ask = ("run", "--temperature", "0", "--max-tokens", "20", "The sea")
        self.assertEqual(self.ok(*ask, "--huge-pages", "on"), self.ok(*ask, "--huge-pages", "off"))
        self.fails(USAGE, *ask, "--huge-pages", "on", "--memory", "1GB", says="memory_bytes")
        self.fails(USAGE, *ask, "--huge-pages", "yes", says="--huge-pages")

    def test_the_log_and_inspect_say_how_weights_are_held(self):
        for command in (("run", "--max-tokens", "1", "a"), ("score", "--tokens", self.file("a", "[0, 51]"))):
            for held, mode in (("MiB mapped", "off"), ("MiB mapped", "auto"), ("MiB in ", "on")):
                with self.subTest(command=command, mode=mode):
                    result = tidemill("--log", "info", *command, "--huge-pages", mode, stdin="The sea")
                    self.assertRegex(result.stderr, rf"weights: [0-9.]+ {held}")
        report = json.loads(self.ok("inspect", "--json"))["huge_pages"]
        self.assertEqual(report["auto"], "off")  # too small
        self.assertIn(f"mapped ({report['why_off']})", self.ok("inspect"))


class Check(Case):
    def test_replay_inputs_need_no_weights(self):
        self.file("config.json", (pathlib.Path(MODEL) / "config.json").read_text(encoding="utf-8"))
        text = self.ok("check", "replay", "--model", str(self.dir))
        self.assertIn("level 1", text)
        self.assertNotIn("level 2", text)
        self.assertTrue(text.endswith("\nOK\n"))
        self.fails(FAILURE, "check", "replay", "--model", str(self.dir), "--level", "2",
                   says="tokenizer.json")

    def test_replay_values(self):
        ids = self.file("ids", json.dumps([0] + [7 * i % 8000 for i in range(3, 425)]))
        report = json.loads(self.ok("check", "replay", "--json", "--tokens", ids))
        self.assertTrue(report["ok"])
        self.assertEqual(len(report["levels"]), 2)
        counts = {p["name"]: p["checked"] for level in report["levels"] for p in level["properties"]}
        # Two chunkings of the rows that the decoder keeps and of the 32 decoded, with and without a hit.
        self.assertEqual(counts["logits, rows"], 4 * (134 + 32))
        self.assertEqual(counts["draft confidences"], 4 * 32 * 5)
        self.assertEqual([p for level in report["levels"] for p in level["properties"]
                          if p["difference"] or p["checked"] == 0], [])
        self.assertIn("mean", " ".join(report["levels"][1]["notes"]))
        self.fails(FAILURE, "check", "replay", "--tokens", "-", stdin="[0, 1]", says="too few")

    def test_wrong_command_lines(self):
        for args in (["check"], ["check", "nosuch"], ["check", "replay", "--level", "3"],
                     ["check", "replay", "--replay", "7"]):
            with self.subTest(args=args):
                self.fails(USAGE, *args)


class Chat(Case):
    def test_pipe(self):
        flags = ["chat", "--temperature", "0", "--max-tokens", "8"]
        answers = self.ok(*flags, stdin="Hello\n/new\nHel\\\nlo\n").splitlines()
        self.assertGreaterEqual(len(answers), 2)
        self.assertEqual(self.ok(*flags, stdin=""), "")

    def test_history_is_part_of_the_question(self):
        flags = ["chat", "--temperature", "0", "--max-tokens", "30"]
        name = "My name is Ruth.\n"
        with_history = self.ok(*flags, stdin=name + "What is my name?\n")
        without = self.ok(*flags, stdin=name + "/new\nWhat is my name?\n")
        self.assertNotEqual(with_history, without)

    def test_answers_are_those_of_run(self):
        flags = ["--temperature", "0", "--max-tokens", "8"]
        self.assertEqual(self.ok("chat", *flags, "--draft", "2", stdin="Hello\n"),
                         self.ok("run", *flags, "Hello"))

    def test_terminal(self):
        """Ctrl-C drops a line, then stops an answer; the program goes on until Ctrl-D."""
        try:
            pid, terminal = pty.fork()
        except OSError as error:
            self.skipTest(f"no terminal to be had here: {error}")
        if pid == 0:
            os.environ.update(TIDEMILL_MODEL=MODEL, TERM="xterm")
            # Of 8,192 tokens nearly equally likely one ends the answer: thousands come before it.
            os.execv(TIDEMILL, [TIDEMILL, "chat", "--max-tokens", "16000", "--temperature", "100"])
        self.addCleanup(os.close, terminal)

        seen = b""

        def wait_for(text):
            """Skips what the terminal shows, up to and with the text."""
            nonlocal seen
            deadline = time.monotonic() + 60
            while text not in seen and time.monotonic() < deadline:
                if select.select([terminal], [], [], 0.2)[0]:
                    seen += os.read(terminal, 65536)
            self.assertIn(text, seen)
            seen = seen[seen.index(text) + len(text):]

        try:
            wait_for(b"> ")
            os.write(terminal, b"half a line\x03")
            wait_for(b"^C")
            wait_for(b"> ")
            os.write(terminal, b"Tell me a story.\n")
            wait_for(b"story.\r\n")
            time.sleep(0.3)
            os.write(terminal, b"\x03")
            wait_for(b"(stopped)")
            wait_for(b"> ")  # only now the terminal is the editor's again
            os.write(terminal, b"\x04")
            wait_for(b"\n")
            exited, status = 0, 0
            for _ in range(100):
                exited, status = os.waitpid(pid, os.WNOHANG)
                if exited:
                    pid = 0
                    break
                time.sleep(0.1)
            self.assertTrue(exited)
            self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        finally:
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    unittest.main()
