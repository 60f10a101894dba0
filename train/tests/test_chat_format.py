"""The encoder against recorded prompts of the released one."""
import json
import pathlib
import unittest

from ..data import chat_format as chat

CASES = pathlib.Path(__file__).parents[2] / "tests" / "cases" / "encoding.json"
EFFORTS = dict(minimal=50, low=50, medium=75, high=75, xhigh=75, max=100, ultra=100, none=75)


def arguments(request):
    """what the API makes of a request's fields"""
    choice, tools, form = request.get("tool_choice"), request.get("tools"), request.get("response_format")
    effort, asked = request.get("reasoning_effort", "high"), request.get("thinking", {}).get("type")
    if choice == "none":
        tools = None
    if isinstance(choice, dict):
        tools = [t for t in tools if t["function"]["name"] == choice["function"]["name"]]
    if form and form["type"] == "json_schema":
        form = form["json_schema"]["schema"]
    return dict(thinking=asked == "enabled" or (asked != "disabled" and effort != "none"), effort=EFFORTS[effort], tools=tools,
                response_format=form, required=choice == "required" or isinstance(choice, dict))


class ChatFormat(unittest.TestCase):
    def test_recorded_prompts(self):
        cases = json.loads(CASES.read_text(encoding="utf8"))["cases"]
        self.assertGreater(len(cases), 20)
        for case in cases:
            r = case["request"]
            with self.subTest(case["name"]):
                out = chat.encode(r["messages"], **arguments(r))
                self.assertEqual("".join(t for t, _ in out), case["prompt"])
                ranges, at = [], 0
                for text, special in out:
                    if special:
                        ranges.append([at, at + len(text)])
                    at += len(text)
                self.assertEqual(ranges, case["special_ranges_codepoints"])

    def test_training_documents_end_with_the_turn(self):
        turns = [dict(role="user", content="a"), dict(role="assistant", content="b")]
        self.assertEqual(chat.encode(turns, thinking=False, header=False)[-1], (chat.EOS, True))

    def test_call_without_parameters_keeps_an_empty_line(self):
        out = chat.Segments()
        chat.put_calls([dict(name="now", arguments={})], out)
        self.assertIn('invoke name="now">\n\n</｜DSML｜ invoke>', "".join(t for t, _ in out))


if __name__ == "__main__":
    unittest.main()
