"""Answers of /v1/chat/completions as clients put them together, whole or from a stream."""

REASONING = "Let me see."  # what the scripted engine thinks
PARAMETERS = {"type": "object", "required": ["city"],
              "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {}}}
TOOLS = [{"type": "function",
          "function": {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "now"}}]
THINK = {"thinking": {"type": "enabled"}}


class Joined:
    """One choice of a stream, put together as clients do; or of an answer that came whole."""

    def __init__(self, chunks=(), index=0, message=None, finish=None):
        self.content, self.reasoning, self.calls, self.finish = "", "", [], finish
        for part in [message] if message else self.deltas(chunks, index):
            self.content += part.content or ""
            self.reasoning += getattr(part, "reasoning_content", None) or ""
            for call in part.tool_calls or []:
                if call.id:
                    self.calls.append([call.function.name, ""])
                self.calls[call.index][1] += call.function.arguments

    def deltas(self, chunks, index):
        for chunk in chunks:
            for choice in chunk.choices:
                if choice.index == index:
                    assert self.finish is None, "a chunk behind the last one"
                    self.finish = choice.finish_reason
                    yield choice.delta

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __repr__(self):
        return str(vars(self))


def whole(answer, index=0):
    choice = answer.choices[index]
    return Joined(message=choice.message, finish=choice.finish_reason)
