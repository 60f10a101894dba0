"""The V4.1 prompt encoding: a chat as text segments, each either plain or one special token.

Source: the released encoder's behaviour as recorded in tests/cases/encoding.json. Only tokens that the encoder inserts are
special; text that merely spells one is not, so every plain segment is tokenized on its own without added tokens.
"""
import json

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK, DSML = "<think>", "</think>", "｜DSML｜"
REMINDER, IMAGE = "<｜latest_reminder｜>", "<｜deepseek_image｜>"

EFFORT = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
FORMAT = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
# `@` stands for the DSML marker, `[` and `]` for <think> and </think>
TOOLS_HEAD = """

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<@ calls>" block like the following:

<@ calls>
<@ invoke name="$TOOL_NAME">
<@ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</@ parameter>
...
</@ invoke>
<@ invoke name="$TOOL_NAME2">
...
</@ invoke>
</@ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by [), you MUST output your complete reasoning inside [...] BEFORE any tool calls or final response.

Otherwise, output directly after ] with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_TAIL = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
MARKS = {"@": DSML, "[": THINK, "]": END_THINK}


class Segments(list):
    """[(text, special)]; neighbouring plain text is joined, because a stretch is tokenized as a whole"""

    def plain(self, text):
        if text and self and not self[-1][1]:
            self[-1] = (self[-1][0] + text, False)
        elif text:
            self.append((text, False))

    def special(self, text):
        self.append((text, True))

    def marked(self, template):
        """a template of this file: its marks become special tokens"""
        start = 0
        for i, c in enumerate(template):
            if c in MARKS:
                self.plain(template[start:i])
                self.special(MARKS[c])
                start = i + 1
        self.plain(template[start:])


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def text_of(content, out):
    """a message's content: text, or parts of which images are placeholders"""
    if not isinstance(content, list):
        out.plain(content or "")
        return
    for i, part in enumerate(content):
        out.plain("\n\n" if i else "")
        if part["type"] == "text":
            out.plain(part["text"])
        else:
            out.special(IMAGE)


def tool_line(tool):
    f = tool.get("function", tool)
    return dumps(dict(name=f["name"], description=f.get("description") or "", parameters=f.get("parameters") or {}))


def put_calls(calls, out):
    out.marked("\n\n<@ calls>\n")
    for call in calls:
        f = call.get("function", call)
        args = f["arguments"]
        for _ in range(2):
            try:
                args = json.loads(args) if isinstance(args, str) else args
            except ValueError:
                break
        if not isinstance(args, dict):
            args = dict(arguments=f["arguments"])
        out.marked("<@ invoke name=\"")
        out.plain(f["name"] + "\">\n")
        for i, (key, value) in enumerate(args.items()):
            is_text = isinstance(value, str)
            out.marked(("\n" if i else "") + "<@ parameter name=\"")
            out.plain(f'{key}" string="{"true" if is_text else "false"}">' + (value if is_text else dumps(value)))
            out.marked("</@ parameter>")
        out.marked("\n</@ invoke>\n")
    out.marked("</@ calls>")


def merged_turns(messages):
    """consecutive user and tool messages are one user turn; tool results go in the order of the calls they answer"""
    turns, order = [], {}
    for m in messages:
        if m["role"] == "assistant":
            order = {c.get("id"): i for i, c in enumerate(m.get("tool_calls") or [])}
        if m["role"] == "system" and not m["content"]:
            continue
        if m["role"] not in ("user", "tool"):
            turns.append(dict(m))
            continue
        if not turns or turns[-1]["role"] != "user":
            turns.append(dict(role="user", parts=[]))
        turns[-1]["parts"].append(m)
        turns[-1]["order"] = order
    for t in turns:
        if t["role"] == "user":
            slots = [i for i, p in enumerate(t["parts"]) if p["role"] == "tool"]
            ranked = sorted((t["parts"][i] for i in slots), key=lambda p: t["order"].get(p.get("tool_call_id"), 0))
            for i, p in zip(slots, ranked):
                t["parts"][i] = p
    return turns


def encode(messages, thinking=True, effort=75, tools=None, response_format=None, required=False, header=True):
    """The segments of a chat. `header`: a finished last assistant turn is followed by the header of the next answer, as in
    prompts; training documents end with the turn. `required`: the answer begins inside a block of calls."""
    turns, out = merged_turns(messages), Segments()
    out.special(BOS)
    has_system = bool(turns) and turns[0]["role"] == "system"
    if has_system or thinking or tools or response_format:
        out.special(SYSTEM)
        if thinking:
            out.plain(EFFORT.format(effort))
        if has_system:
            text_of(turns[0]["content"], out)
        if tools:
            out.marked(TOOLS_HEAD)
            out.plain("\n".join(map(tool_line, tools)) + TOOLS_TAIL)
        if response_format:
            out.plain(FORMAT + dumps(response_format))
    turns = turns[has_system:]
    last = len(turns) - 1
    finished = last >= 0 and turns[last]["role"] == "assistant" and not turns[last].get("prefix")

    def open_answer(newest):
        """-> whether it reasons: with tools always, else only the newest answer does"""
        reasons = thinking and (bool(tools) or newest)
        out.special(ASSISTANT)
        out.special(THINK if reasons else END_THINK)
        return reasons

    for i, t in enumerate(turns):
        if t["role"] == "assistant":
            reasons = open_answer(i == last and not (finished and header))
            prefix, content, reasoning = t.get("prefix", False), t.get("content"), t.get("reasoning_content")
            if reasons:
                out.plain(reasoning or "")
                if content or not prefix:
                    out.special(END_THINK)
            text_of(content, out)
            if t.get("tool_calls"):
                put_calls(t["tool_calls"], out)
            if not prefix:
                out.special(EOS)
        else:
            out.special({"user": USER, "system": SYSTEM, "latest_reminder": REMINDER}[t["role"]])
            if t["role"] == "user":
                for k, part in enumerate(t["parts"]):
                    out.plain("\n\n" if k else "")
                    out.plain("<tool_result>" if part["role"] == "tool" else "")
                    text_of(part["content"], out)
                    out.plain("</tool_result>" if part["role"] == "tool" else "")
            else:
                text_of(t["content"], out)
    if last < 0 or turns[last]["role"] != "assistant" or (finished and header):
        open_answer(True)
        if required and not thinking:
            out.marked("\n\n<@ calls>\n")
    return out


def token_ids(segments, tokenizer):
    """`tokenizer`: a tokenizers.Tokenizer whose texts spell no added token (prepare.py sees to it)"""
    ids = []
    for text, special in segments:
        ids += [tokenizer.token_to_id(text)] if special else tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def spells_special(text):
    """such text would be read as special tokens by a tokenizer that knows added ones"""
    return "｜" in text or any(t in text for t in (THINK, END_THINK, "<|EOT|>", "<|place_holder"))
