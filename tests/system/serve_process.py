"""`tidemill serve` in a process of its own, for system tests: address, log, metrics, end."""
import atexit
import concurrent.futures
import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

SOURCE = pathlib.Path(os.environ["TIDEMILL_SOURCE_DIR"])
TIDEMILL = os.environ["TIDEMILL"]
MODEL = os.environ.get("TIDEMILL_MODEL", str(SOURCE / "models" / "mini"))
CASES = SOURCE / "tests" / "cases" / "serve_http"
SCRIPTED = ("--scripted", "0", "--port", "0", "--thinking", "off")
# One thread does not wait for another that a busy machine has put aside.
MODEL_FLAGS = ("--port", "0", "--thinking", "off", "--threads", "1")
PATIENCE = 60  # seconds: for a loaded machine


def need_clients():
    """Goes on in the environment of scripts/bootstrap if this Python lacks the official clients."""
    if importlib.util.find_spec("openai") and importlib.util.find_spec("anthropic"):
        return
    python = SOURCE / ".venv" / "bin" / "python"
    if pathlib.Path(sys.prefix) == SOURCE / ".venv" or not python.exists():
        sys.exit("the clients openai and anthropic are missing: run scripts/bootstrap")
    os.execv(python, [str(python), *sys.argv])


def cases(name):
    return json.loads((CASES / name).read_text(encoding="utf-8"))


def wait_until(condition, what="what was waited for", seconds=PATIENCE):
    """The first true value of condition()."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.01)
    return value


def together(action, arguments):
    """action(argument) of each, all at the same time, each in a thread of its own."""
    arguments = list(arguments)
    with concurrent.futures.ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(action, arguments))


class Answer:
    """Of a plain HTTP request, read to its end."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def events(self):
        """Of an event stream: (name, data), with data still text; comments are left out."""
        events = []
        for block in self.text.split("\n\n"):
            fields = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
            fields = {name: value for name, _, value in fields if name}
            if fields:
                events.append((fields.get("event", ""), fields["data"]))
        return events


class Server:
    """Ready when made. `flags` are those of serve; `environment` adds to this process's."""

    def __init__(self, *flags, environment={}, ready=r"is served at (\S+)",
                 program=(TIDEMILL, "serve", "--model", MODEL), directory=None):
        self.log_file = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*program, *flags], stdin=subprocess.DEVNULL, stdout=self.log_file,
            stderr=self.log_file, cwd=directory,
            env={**os.environ, "TIDEMILL_MODEL": MODEL, **environment})
        atexit.register(self.close)  # a test that breaks off leaves nothing running
        try:
            self.url = wait_until(lambda: self._address(ready), "a server that is ready")
        except BaseException:
            self.close()
            raise
        self.v1 = self.url + "/v1"

    def _address(self, ready):
        if found := re.search(ready, self.log):
            return found[1]
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log}")
        return None

    @property
    def log(self):
        """All that it has written; stdout and stderr."""
        return os.pread(self.log_file.fileno(), 1 << 26, 0).decode(errors="replace")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log_file.close()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def exit_code(self, seconds=PATIENCE):
        return self.process.wait(timeout=seconds)

    # ---- plain HTTP

    def open(self, method, path, body=None, headers={}):
        """The connection and its response, whose body has not been read."""
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        try:
            connection.request(method, path, body, headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def get(self, path, method="GET", body=None, **headers):
        """Headers as X_Request_Id="1"."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection, response = self.open(method, path, body, named)
        with contextlib.closing(connection):
            return Answer(response)

    def post(self, path, body, **headers):
        return self.get(path, "POST", body, **headers)

    # ---- what it tells about itself

    def metrics(self):
        """Sums of samples by name; single ones by 'name{label="value"}', without the model's."""
        samples = {}
        for line in self.get("/metrics").text.splitlines():
            if line.startswith("#"):
                continue
            name, labels, value = re.fullmatch(r"(\w[\w:]*)(?:\{(.*)\})? (\S+)", line).groups()
            labels = re.sub(r'model_name="[^"]*",?', "", labels or "").strip(",")
            for key in {name, f"{name}{{{labels}}}" if labels else name}:
                samples[key] = samples.get(key, 0) + float(value)
        return samples

    def status(self, **headers):
        return self.get("/v1/status", **headers).json

    def wait_for_idle(self, **headers):
        """The status once no request is left in server and engine."""
        def idle():
            status = self.status(**headers)
            engine = status["engine"]
            busy = status["in_flight"], status["streams"], engine["running"], engine["waiting"]
            return status if not any(busy) else None
        return wait_until(idle, "an idle server")


class Case(unittest.TestCase):
    """With a directory, and servers that end with the test."""

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


# ---- the official clients; every answer and every chunk is checked against their types

def openai_client(server, api_key="none", asynchronous=False, **options):
    import openai
    kind = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    return kind(**{"base_url": server.v1, "api_key": api_key, "max_retries": 0,
                   "timeout": PATIENCE, "_strict_response_validation": True, **options})


def anthropic_client(server, api_key="none", asynchronous=False, **options):
    import anthropic
    kind = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
    return kind(**{"base_url": server.url, "api_key": api_key, "max_retries": 0,
                   "timeout": PATIENCE, "_strict_response_validation": True, **options})


def user(text):
    return [{"role": "user", "content": text}]


def dsml(*calls):
    """What a model writes to call: pairs of a name and its parameters."""
    lines = ["\n\n<｜DSML｜ calls>"]
    for name, parameters in calls:
        lines.append(f'<｜DSML｜ invoke name="{name}">')
        for key, value in parameters.items():
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, ensure_ascii=False)
            lines.append(f'<｜DSML｜ parameter name="{key}" string="{str(is_text).lower()}">{text}'
                         "</｜DSML｜ parameter>")
        lines.append("</｜DSML｜ invoke>")
    return "\n".join([*lines, "</｜DSML｜ calls>"])
