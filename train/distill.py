"""Chats and short texts written by a teacher (SmolLM2-135M-Instruct), as JSON lines for prepare.py.

usage: python3 -m train.distill GGUF OUT.jsonl --seconds N [--topics FILE] [--slots N] [--length N] [--seed N]
Bounded by wall-clock; what is there is written as it comes, so a run that is cut short loses nothing. Prompts are templates
over topics (words.TOPICS and the lines of --topics). Lines: {"messages": [...]} or {"text": ...}.
"""
import argparse
import json
import random
import re
import time
import zlib

from .data import words as w

CHAT = "You are a helpful assistant. You answer correctly, in a few short sentences."
AUTHOR = "You are the author of a good textbook. You write clear, correct paragraphs without headings."
ASKS = ["What is {}?", "What is {}?", "Explain {} in simple words.", "Tell me about {}.", "How does {} work?", "Why is {} important?",
        "Tell me three facts about {}.", "Describe {} to a child.", "What should everyone know about {}?", "Summarize {} in one sentence.",
        "Give me an example of {}.", "What is {} used for?", "What is the history of {}?", "I want to learn about {}.", "Define {}.",
        "Make a short list of things about {}.", "What is interesting about {}?", "Can you explain {}?"]
TEXTS = ["Write a textbook section about {}.", "Write an introduction to {} for students.", "Explain {} in two paragraphs.",
         "Write a short article about {}.", "Write a paragraph about the causes and effects of {}.",
         "Describe the most important ideas about {}.", "Write about how people understood {} in the past and today."]
TASKS = ["Write a short story about {n} and {t}.", "Write a four-line poem about {t}.", "Give me three tips for {a}.", "How do I start with {a}?",
         "I feel {f} today. What can I do?", "Write a short email to {n} about {a}.", "Suggest a name for a {p}.", "What could I do on a rainy {d}?",
         "Plan a day in {c}.", "What is {c} known for?", "Write a birthday wish for {n}.", "Compare {t} and {u}.", "Ask me a question about {t}.",
         "Is {a} a good hobby?", "What do I need for {a}?", "Tell me a story about a {p} called {m}.", "What can I cook with {o} and {q}?"]
ACTIVITIES = ("learning to draw|running|saving money|studying for an exam|cooking at home|growing tomatoes|learning guitar|writing a letter|cleaning a room|"
              "sleeping better|making friends|public speaking|a job interview|learning English|reading more|baking bread|a long walk|photography|chess|swimming").split("|")
FEELINGS = "tired happy sad bored nervous angry lonely proud lost busy".split()
FOLLOW = ["Can you give an example?", "Why?", "Say that in one sentence.", "Tell me more.", "Is that always true?", "How do you know?",
          "What else should I know?", "Thank you! What should I read next?", "Explain it to a child.", "What is the most important part?"]
FOLD = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-", "\u2026": "...", "\u00a0": " "})


def prompt(r, topics):
    """-> (system, user, whether the answer is kept as plain text)"""
    topic = r.choice(topics if r.random() < 0.6 else w.TOPICS)
    x = r.random()
    if x < 0.45:
        return CHAT, r.choice(ASKS).format(topic), False
    if x < 0.8:
        return AUTHOR, r.choice(TEXTS).format(topic), r.random() < 0.6
    pick = lambda words: r.choice(words)
    return CHAT, pick(TASKS).format(n=pick(w.NAMES), t=pick(w.TOPICS), u=pick(w.TOPICS), a=pick(ACTIVITIES), f=pick(FEELINGS), d=pick(w.DAYS), c=pick(w.CITIES),
                                    p=pick(["cat", "dog", "boat", "cafe", "horse", "robot", "bear"]), m=pick(w.PET_NAMES), o=pick(w.FOODS), q=pick(w.FOODS)), False


def teacher_prompt(system, messages):
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in [dict(role="system", content=system)] + messages)
    return turns + "<|im_start|>assistant\n"


def cleaned(text, ended):
    """the answer as it is kept, or None"""
    text = text.translate(FOLD).strip()
    if not ended:                                            # cut short: keep whole sentences
        end = max(text.rfind(c) for c in ".!?")
        text = text[:end + 1]
    if not 8 <= len(text) or re.search(r"SmolLM|Hugging ?Face|<\||\bAI (language )?model\b", text):
        return None
    if sum(c > "\u024f" for c in text) > 0.01 * len(text):
        return None
    if len(text) > 200 and len(zlib.compress(text.encode())) < 0.35 * len(text):
        return None                                          # loops
    return text


class Writer:
    """decides what a finished slot was worth and what its slot does next"""

    def __init__(self, tok, topics, seed, length, out):
        self.tok, self.topics, self.r, self.length, self.out = tok, topics, random.Random(seed), length, out
        self.jobs, self.kept, self.dropped, self.characters = {}, 0, 0, 0

    def ids(self, job):
        return self.tok.encode(teacher_prompt(job["system"], job["messages"]), add_special_tokens=False).ids

    def start(self, slot):
        system, ask, text = prompt(self.r, self.topics)
        self.jobs[slot] = dict(system=system, messages=[dict(role="user", content=ask)], text=text, more=self.r.choice([0, 0, 0, 1, 2]))
        return self.ids(self.jobs[slot])

    def finish(self, slot, ids, ended):
        """-> the next prompt of the slot"""
        job = self.jobs.pop(slot, None)
        answer = cleaned(self.tok.decode(ids, skip_special_tokens=True), ended) if job else None
        if job and answer is None and len(job["messages"]) == 1:
            self.dropped += 1
            return self.start(slot)
        if not job:
            return self.start(slot)
        if answer is not None:
            job["messages"].append(dict(role="assistant", content=answer))
        else:
            job["messages"].pop()                            # the follow-up failed; what was before it is fine
        if answer is not None and job["more"] and not job["text"] and ended:
            job["more"] -= 1
            job["messages"].append(dict(role="user", content=self.r.choice(FOLLOW)))
            ids = self.ids(job)
            if len(ids) < self.length * 2 // 3:
                self.jobs[slot] = job
                return ids
            job["messages"].pop()
        line = dict(text=job["messages"][1]["content"]) if job["text"] else dict(messages=job["messages"])
        self.out.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.kept += 1
        self.characters += sum(len(m["content"]) for m in job["messages"])
        return self.start(slot)


def main():
    import torch
    from .teacher import Slots, Teacher
    ap = argparse.ArgumentParser()
    ap.add_argument("gguf"), ap.add_argument("out")
    ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--topics", default="")
    ap.add_argument("--slots", type=int, default=2048)
    ap.add_argument("--length", type=int, default=448)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--temperature", type=float, default=0.8)
    a = ap.parse_args()
    begin = time.time()
    torch.manual_seed(a.seed)
    teacher = Teacher(a.gguf, "cuda" if torch.cuda.is_available() else "cpu",
                      torch.bfloat16 if torch.cuda.is_available() else torch.float32)
    topics = [t.strip() for t in open(a.topics, encoding="utf8") if t.strip()] if a.topics else w.TOPICS
    slots = Slots(teacher, a.slots, a.length, a.temperature)
    said = begin
    with open(a.out, "w", encoding="utf8") as out:
        writer = Writer(teacher.tok, topics, a.seed, a.length, out)
        slots.load({s: writer.start(s) for s in range(a.slots)})
        while time.time() - begin < a.seconds:
            finished = slots.finished()
            slots.run(8)                                     # the device works on while the host reads and writes
            slots.load({s: writer.finish(s, ids, ended) for s, ids, ended in finished})
            if time.time() - said > 15:
                said = time.time()
                print(json.dumps(dict(t=round(said - begin, 1), kept=writer.kept, dropped=writer.dropped, characters=writer.characters)), flush=True)
    print(json.dumps(dict(t=round(time.time() - begin, 1), kept=writer.kept, dropped=writer.dropped, characters=writer.characters)), flush=True)


if __name__ == "__main__":
    main()
