"""The status page in headless Chromium: numbers, chat, key, and what it says when things go wrong.

PAGE_URL names a running server to use instead of `tidemill serve`; SCREENSHOTS names a folder that
keeps the pictures.
"""
import base64
import collections
import fcntl
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("TIDEMILL_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
PAGE = SOURCE / "src" / "serve" / "page" / "status.html"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120  # seconds: for a loaded machine


class Browser:
    """Chromium, driven by DevTools messages (JSON, ended by NUL) over its file descriptors 3 and 4."""

    def __init__(self, profile):
        ends = [fd for pair in (os.pipe(), os.pipe()) for fd in pair]
        # Away from 3 and 4, which the child gives a meaning.
        commands_out, commands_in, answers_out, answers_in = (
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in ends)
        for fd in ends:
            os.close(fd)

        def connect():
            os.dup2(commands_out, 3)
            os.dup2(answers_in, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", f"--user-data-dir={profile}", "--window-size=1440,1000",
             "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=connect)
        os.close(commands_out)
        os.close(answers_in)
        self.commands, self.answers = commands_in, answers_out
        self.unread = b""
        self.ids = 0
        self.results = {}
        self.handlers = collections.defaultdict(list)  # event -> functions of its parameters
        self.session = None

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(timeout=PATIENCE)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.commands)
        os.close(self.answers)

    def send(self, method, **parameters):
        self.ids += 1
        message = {"id": self.ids, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self.commands, left):]
        return self.ids

    def call(self, method, **parameters):
        number = self.send(method, **parameters)
        end = time.monotonic() + PATIENCE
        while number not in self.results:
            self.receive(end - time.monotonic())
        answer = self.results.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def receive(self, seconds):
        """Takes in what comes within the time, at least one message."""
        if seconds <= 0 or not select.select([self.answers], [], [], seconds)[0]:
            raise AssertionError("the browser does not answer")
        data = os.read(self.answers, 1 << 16)
        if not data:
            raise AssertionError("the browser has ended")
        *messages, self.unread = (self.unread + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.results[message["id"]] = message
            else:
                for handler in self.handlers[message["method"]]:
                    handler(message["params"])


class Tab:
    """A new page with a session storage of its own."""

    def __init__(self, browser):
        self.browser = browser
        browser.session = None
        browser.handlers.clear()
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)
        self.target = target["targetId"]
        browser.session = browser.call("Target.attachToTarget", targetId=self.target,
                                       flatten=True)["sessionId"]
        self.call = browser.call
        self.problems = []  # what a developer would see in red
        browser.handlers["Runtime.exceptionThrown"].append(
            lambda event: self.problems.append(str(event["exceptionDetails"])))
        browser.handlers["Log.entryAdded"].append(self.take_log_entry)
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self.browser.handlers.clear()
        self.browser.session = None
        self.call("Target.disposeBrowserContext", browserContextId=self.context)

    def take_log_entry(self, event):
        if event["entry"]["level"] == "error":
            self.problems.append(event["entry"]["text"])

    def answer_status_with(self, answer):
        """`answer` of the request's headers: (HTTP status, JSON), or None: no connection."""
        def take(event):
            number = {"requestId": event["requestId"]}
            made = answer(event["request"]["headers"])
            if made is None:
                self.browser.send("Fetch.failRequest", **number, errorReason="ConnectionRefused")
                return
            body = base64.b64encode(json.dumps(made[1]).encode()).decode()
            self.browser.send("Fetch.fulfillRequest", **number, responseCode=made[0], body=body)

        self.browser.handlers["Fetch.requestPaused"].append(take)
        self.call("Fetch.enable", patterns=[{"urlPattern": "*/v1/status"}])

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + PATIENCE
        while not (value := self.value(expression)):
            if time.monotonic() > end:
                page = self.value("document.querySelector('header').innerText + '\\n' + "
                                  "document.querySelector('#log').innerText")
                raise AssertionError(f"never came true: {expression}\n{page}\n{self.problems}")
            time.sleep(0.05)
        return value

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def type(self, selector, text):
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press_enter(self):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                      windowsVirtualKeyCode=13)

    def click(self, selector):
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


class Server:
    """`tidemill serve` on a port of its own, until close()."""

    def __init__(self):
        self.process = subprocess.Popen(
            [os.environ["TIDEMILL"], "serve", "--port", "0"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "TIDEMILL_MODEL": str(SOURCE / "models" / "mini")})
        self.lines = []
        self.found = threading.Event()
        self.url = None
        threading.Thread(target=self.read, daemon=True).start()
        if not self.found.wait(PATIENCE) or not self.url:
            self.close()
            raise AssertionError("tidemill serve named no address:\n" + "".join(self.lines))

    def read(self):
        for line in self.process.stdout:  # to the end, so that it never waits for a reader
            self.lines.append(line)
            if not self.url and (match := re.search(r"http://127\.0\.0\.1:[1-9]\d*", line)):
                self.url = match.group()
                self.found.set()
        self.found.set()

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def setUpModule():
    global scratch, server, url, browser
    scratch = tempfile.TemporaryDirectory(prefix="tidemill-page-")
    unittest.addModuleCleanup(scratch.cleanup)
    url = os.environ.get("PAGE_URL")
    if not url:
        server = Server()
        unittest.addModuleCleanup(server.close)
        url = server.url
    browser = Browser(scratch.name + "/profile")
    unittest.addModuleCleanup(browser.close)


def get(path):
    with urllib.request.urlopen(url.rstrip("/") + path, timeout=PATIENCE) as response:
        return json.load(response) if path != "/" else response.read().decode()


def ask(text):
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 8, "stream": True,
                       "thinking": {"type": "disabled"}}).encode()
    request = urllib.request.Request(url.rstrip("/") + "/v1/chat/completions", body,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        response.read()


def is_in_state(state):
    return f"document.body.dataset.state === '{state}'"


LAST_NOTE = "document.querySelector('#log > .turn:last-child > .note')?.textContent"
LAST_TEXT = "document.querySelector('#log > .turn:last-child > .text')?.textContent"


class Source(unittest.TestCase):
    def test_it_is_one_small_file(self):
        text = PAGE.read_text(encoding="utf-8")
        self.assertLess(len(text.encode()), 30_000)
        self.assertNotIn(')embedded"', text)  # would end the literal that holds the page
        outside = re.sub(r"xmlns='[^']*'", "", text)  # a name, never fetched
        self.assertNotRegex(outside, r"https?:|src=|@import|url\(")
        self.assertNotRegex(text, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")


class InBrowser(unittest.TestCase):
    def setUp(self):
        self.tab = Tab(browser)
        self.addCleanup(self.tab.close)

    def open(self, state="live"):
        self.tab.call("Page.navigate", url=url)
        self.tab.wait(f"document.body && {is_in_state(state)}")

    def screenshot(self, name):
        folder = pathlib.Path(os.environ.get("SCREENSHOTS", scratch.name))
        folder.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(folder / f"{name}.png")
        self.assertGreater((folder / f"{name}.png").stat().st_size, 10_000)

    def problems(self, expected=None):
        return [text for text in self.tab.problems if not expected or expected not in text]


class Numbers(InBrowser):
    def test_they_are_the_servers(self):
        self.assertIn("<title>Tidemill</title>", get("/"))
        for _ in range(3):
            ask("How is the sea?")
        status = get("/v1/status")
        self.open()
        text = self.tab.text
        self.assertEqual(text("#model"), status["model"])
        self.assertEqual(text("[data-value=context]"), f"{status['context']:,}")
        self.assertEqual(text("[data-value=version]"), status["version"])
        self.tab.wait("document.querySelectorAll('#recent-rows tr').length >= 3")
        self.assertIn("/v1/chat/completions", text("#recent-rows"))
        for measure in ("first_token", "inter_token", "total", "queue"):
            self.assertRegex(text(f'[data-value="latency.{measure}.p99_ms"]'), r"^[\d.,]+ (ms|s)$")
        counts = self.tab.value("[...document.querySelectorAll('#outcomes li > :last-child')]"
                                ".map(n => +n.textContent.replaceAll(',', ''))")
        self.assertGreaterEqual(sum(counts), 3)
        self.assertRegex(text("#cache"), r"Tokens hit[\d.–]+.*Blocks used[\d,]+Blocks free[\d,]+")
        self.assertRegex(text("#drafts"), r"Accepted at 1[\d.]+ %|Draftsoff")
        self.assertRegex(text("#idle"), r"^[\d.]+ %$")
        # The requests of a moment ago are in the charts as soon as their second is over.
        self.tab.wait("/^peak [1-9]/.test(document.querySelector('.peak').textContent)")
        self.assertRegex(self.tab.value("document.querySelector('.curve').getAttribute('d')"),
                         r"^M0 [\d.]+(L\d+ [\d.]+){59}$")
        self.screenshot("light")
        self.assertEqual(self.problems(), [])

    def test_they_move(self):
        self.open()
        before = self.tab.text("#recent-rows")
        ask("And now?")
        self.tab.wait(f"document.querySelector('#recent-rows').textContent !== {json.dumps(before)}")

    def test_dark_and_narrow(self):
        self.tab.call("Emulation.setEmulatedMedia",
                      features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.open()
        self.screenshot("dark")
        self.tab.call("Emulation.setDeviceMetricsOverride", width=360, height=2600,
                      deviceScaleFactor=1, mobile=True)
        self.tab.wait("innerWidth === 360")
        self.assertEqual(self.tab.value("document.documentElement.scrollWidth"), 360)
        self.screenshot("narrow")
        self.assertEqual(self.problems(), [])

    def test_only_misses_that_happened(self):
        status = get("/v1/status")
        status["engine"]["cache"]["misses"] = {"none": 5, "too_short": 3, "evicted": 0}
        self.tab.answer_status_with(lambda headers: (200, status))
        self.open()
        self.assertEqual(self.tab.text("#misses"), "too short3")

    def test_texts_are_never_markup(self):
        evil = "<img src=x onerror=alert(1)><b>bold</b>"
        record = {"id": "a", "client": evil, "endpoint": evil, "stream": True, "status": 200,
                  "outcome": evil, "reason": evil, "arrived_unix_s": 0, "prompt_tokens": 1,
                  "cached_tokens": None, "output_tokens": 1, "first_token_ms": -1, "total_ms": 1e6}
        status = {**get("/v1/status"), "model": evil, "recent": [record]}
        status["engine"]["cache"]["misses"] = {evil: 1}
        self.tab.answer_status_with(lambda headers: (200, status))
        self.open()
        self.assertEqual(self.tab.text("#model"), evil)
        self.assertEqual(self.tab.text("#recent-rows td:nth-child(2)"), evil)
        self.assertEqual(self.tab.value("document.querySelectorAll('img, main b').length"), 0)
        self.assertEqual(self.problems(), [])


class Chat(InBrowser):
    def test_turns_follow_each_other(self):
        self.open()
        for turn in (1, 2):
            self.tab.type("#question", "Say hello.")
            self.tab.press_enter()
            self.tab.wait(f"document.querySelectorAll('#log > .turn').length === {2 * turn}")
            self.tab.wait("document.querySelector('#stop').disabled")
            self.assertRegex(self.tab.value(LAST_NOTE) or self.tab.text("#log"),
                             r"^\d+ tokens, prompt \d+ \(\d+ cached\), first after ")
            self.assertTrue(self.tab.value(LAST_TEXT))
        self.assertEqual(self.tab.value("turns.length"), 4)
        self.screenshot("chat")
        self.tab.click("#new-chat")
        self.assertEqual(self.tab.value("turns.length + document.querySelector('#log').children.length"), 0)
        self.assertEqual(self.problems(), [])

    def test_thinking_is_folded(self):
        self.open()
        self.tab.click("#thinking")
        self.tab.type("#question", "Say hello.")
        self.tab.click("#send")
        self.tab.wait("document.querySelector('#log details > .text')?.textContent")
        self.assertFalse(self.tab.value("document.querySelector('#log details').open"))
        self.tab.click("#stop")
        self.tab.wait("document.querySelector('#stop').disabled")
        self.assertEqual(self.problems(), [])

    def test_stop(self):
        self.open()
        # Stopped as its first text appears, so that even a fast model is not done by then.
        self.tab.value("new MutationObserver(() => document.querySelector('.turn:not(.user) > .text')"
                       "?.textContent && document.querySelector('#stop').click())"
                       ".observe(document.querySelector('#log'), {subtree: true, childList: true})")
        self.tab.type("#question", "Tell me a long story.")
        self.tab.click("#send")
        self.tab.wait("document.querySelector('#stop').disabled")
        self.assertEqual(self.tab.value(LAST_NOTE), "stopped")
        self.assertFalse(self.tab.value("document.querySelector('#send').disabled"))
        self.assertEqual(self.problems(), [])

    def test_errors_are_the_servers_words(self):
        self.open()
        # A field that no server takes; the page itself never sends one.
        self.tab.value("fetch = ((real) => (path, options) => real(path, options.body ? {...options,"
                       " body: options.body.replace('{', '{\"max_tokens\": -1, ')} : options))(fetch)")
        self.tab.type("#question", "refuse this")
        self.tab.press_enter()
        self.tab.wait("document.querySelector('#log .failed') !== null")
        self.assertRegex(self.tab.text("#log .failed"), r"max_tokens|try again")
        self.assertEqual(self.tab.value("document.querySelector('#question').value"), "refuse this")
        self.assertEqual(self.tab.value("turns.length"), 0)
        self.assertEqual(self.problems("Failed to load resource"), [])


class Trouble(InBrowser):
    def test_a_key_is_asked_for(self):
        status = get("/v1/status")
        seen = []

        def answer(headers):
            key = headers.get("Authorization")
            seen.append(key)
            if key == "Bearer right":
                return 200, status
            return 401, {"error": {"message": "this API key is not known here" if key else "no API key"}}

        self.tab.answer_status_with(answer)
        self.open("locked")
        self.assertEqual(self.tab.text("#key-reason"), "no API key")
        self.screenshot("key")
        self.tab.value("document.dispatchEvent(new Event('visibilitychange'))")
        self.tab.type("#key", "wrong")
        self.tab.press_enter()
        self.tab.wait("document.querySelector('#key-reason').textContent.includes('not known')")
        asked = len(seen)
        self.assertEqual(seen, [None, "Bearer wrong"])  # nobody is asked again without a new key
        self.tab.type("#key", "right")
        self.tab.press_enter()
        self.tab.wait(is_in_state("live"))
        self.assertEqual(seen[asked], "Bearer right")
        self.assertTrue(self.tab.value("document.querySelector('#key-form').hidden"))
        self.assertEqual(self.tab.value("localStorage.length + document.cookie.length"), 0)
        self.assertEqual(self.problems("Failed to load resource"), [])

    def test_a_hidden_page_asks_nothing(self):
        status = get("/v1/status")
        seen = []
        self.tab.answer_status_with(lambda headers: seen.append(headers) or (200, status))
        self.open()
        hide = ("Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {}}});"
                "document.dispatchEvent(new Event('visibilitychange'))")
        self.tab.value("poll();" + hide.format("true"))  # also while an answer is on its way
        self.tab.wait("!isPolling")
        asked = len(seen)
        self.tab.value("new Promise(done => setTimeout(done, 3000))")
        self.assertEqual(len(seen), asked)
        self.tab.value(hide.format("false"))
        self.tab.wait("!isPolling")
        self.assertEqual(len(seen), asked + 1)
        self.assertEqual(self.problems(), [])

    def test_draining(self):
        status = {**get("/v1/status"), "draining": True}
        self.tab.answer_status_with(lambda headers: (200, status))
        self.open("draining")
        self.assertIn("draining", self.tab.text("#state"))
        self.screenshot("draining")
        self.assertEqual(self.problems(), [])

    def test_a_lost_server_is_asked_less_often(self):
        status = get("/v1/status")
        answers = iter([(200, status), None, (500, {"error": {"message": "an error of the server"}})])
        self.tab.answer_status_with(lambda headers: next(answers, (200, status)))
        self.open("lost")
        self.assertEqual(self.tab.text("#state"), "the server does not answer; next try in 2 s")
        self.tab.wait("document.querySelector('#state').textContent === "
                      "'an error of the server; next try in 4 s'")
        self.tab.wait(is_in_state("live"))
        self.assertEqual(self.problems("Failed to load resource"), [])


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: there is no chromium here to show the page")
        sys.exit(77)
    unittest.main()
