"""Synthetic chats: recall over short and long distances, arithmetic, lists, stories, instructions, identity.

A generator takes a random.Random and returns keyword arguments of chat_format.encode. Deterministic by seed, standard
library only, own text. The tasks of daily life, JSON and tools are in synth_tasks.py.
"""
from . import words as w


def user(text):
    return dict(role="user", content=text)


def answer(text, reasoning=None):
    return dict(role="assistant", content=text, **({"reasoning_content": reasoning} if reasoning else {}))


def chat(messages, **kw):
    return dict(dict(messages=messages, thinking=False), **kw)


def a_an(noun):
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def facts(r):
    """[(statement, questions, answer)], each of another kind"""
    name, city, job, food = r.choice(w.NAMES), r.choice(w.CITIES), r.choice(w.JOBS), r.choice(w.FOODS)
    pet, pet_name, thing, place = r.choice(w.PETS), r.choice(w.PET_NAMES), r.choice(w.THINGS), r.choice(w.PLACES)
    color, friend, code = r.choice(w.COLORS), r.choice([n for n in w.NAMES if n != name]), str(r.randint(1000, 999999))
    day, hour = r.choice(w.DAYS), f"{r.randint(1, 12)}:{r.choice(['00', '15', '30', '45'])}"
    month, date, age, seat = r.choice(w.MONTHS), r.randint(1, 28), r.randint(18, 80), f"{r.randint(1, 40)}{r.choice('ABCDEF')}"
    be = "are" if thing.endswith("s") else "is"
    pool = [
        (f"My name is {name}.", ["What is my name?", "Do you remember my name?", "Who am I?"], f"Your name is {name}."),
        (f"I live in {city}.", ["Where do I live?", "Which city do I live in?"], f"You live in {city}."),
        (f"I work as {a_an(job)}.", ["What is my job?", "What do I do for a living?"], f"You work as {a_an(job)}."),
        (f"My favorite color is {color}.", ["What is my favorite color?", "Which color do I like best?"], f"Your favorite color is {color}."),
        (f"I love eating {food}.", ["What food do I love?", "What do I love eating?"], f"You love eating {food}."),
        (f"I have {pet} named {pet_name}.", ["What is my pet's name?", "Do I have a pet?"], f"You have {pet} named {pet_name}."),
        (f"I left my {thing} {place}.", [f"Where {be} my {thing}?", f"Where did I leave my {thing}?"], f"You left your {thing} {place}."),
        (f"My appointment is on {day} at {hour}.", ["When is my appointment?"], f"Your appointment is on {day} at {hour}."),
        (f"The code is {code}. Please remember it.", ["What is the code?", "What was the code I told you?"], f"The code is {code}."),
        (f"My best friend is called {friend}.", ["Who is my best friend?"], f"Your best friend is {friend}."),
        (f"My birthday is on {month} {date}.", ["When is my birthday?"], f"Your birthday is on {month} {date}."),
        (f"I am {age} years old.", ["How old am I?"], f"You are {age} years old."),
        (f"My seat is {seat}.", ["What is my seat?", "Which seat do I have?"], f"Your seat is {seat}.")]
    r.shuffle(pool)
    return pool


ACKS = ["Got it, I will remember that.", "Thanks for telling me.", "Okay, noted.", "Nice to know!", "All right."]


def recall(r):
    known = facts(r)[:r.randint(1, 6)]
    turns, k = [], r.randint(1, len(known))
    for group in [known[:k]] + [[f] for f in known[k:]]:
        turns += [user(" ".join(f[0] for f in group)), answer(r.choice(ACKS))]
        for q, a in r.sample(w.FILLER, r.choice([0, 0, 1, 2, 3])):
            turns += [user(q), answer(a)]
    for f in r.sample(known, r.randint(1, len(known))):
        turns += [user(r.choice(f[1])), answer(f[2])]
    return chat(turns)


def recall_long(r, passages, characters):
    """facts first, then text to read until `characters` are full, then the questions. passages: paragraphs to fill with"""
    known = facts(r)[:r.randint(2, 8)]
    k = r.randint(1, len(known))
    turns, size, rest = [user(" ".join(f[0] for f in known[:k])), answer(r.choice(ACKS))], 0, known[k:]
    while size < characters:
        text = ""
        while len(text) < min(r.randint(400, 3000), characters - size):
            text += ("\n\n" if text else "") + r.choice(passages)
        if rest and r.random() < 0.5:
            f = rest.pop()
            parts = text.split("\n\n")
            parts.insert(r.randint(0, len(parts)), f"{r.choice(['By the way:', 'A note:', 'Remember:'])} {f[0]}")
            text = "\n\n".join(parts)
        else:
            f = None
        turns += [user(r.choice(["Read this.", "Here is some text.", "Please read the following."]) + "\n\n" + text),
                  answer(r.choice(["Done.", "I have read it.", "Okay."]))]
        size += len(text)
    told = [f for f in known if f not in rest]
    for f in r.sample(told, r.randint(1, len(told))):
        turns += [user(r.choice(f[1])), answer(f[2])]
    return chat(turns)


def sum_steps(a, b):
    """the carry of a written addition, in words"""
    out, carry, x, y = [], 0, a, b
    while x or y or carry:
        s = x % 10 + y % 10 + carry
        out.append(f"{x % 10} + {y % 10}" + (f" + {carry}" if carry else "") + f" = {s}" + (f", write {s % 10}, carry 1" if s > 9 else ""))
        carry, x, y = s // 10, x // 10, y // 10
    return "; ".join(out) + "."


def arithmetic(r):
    op = r.choice("+-*++")
    a, b = (r.randint(0, 12), r.randint(0, 12)) if op == "*" else (r.randint(0, 10 ** r.randint(1, 3)), r.randint(0, 10 ** r.randint(1, 3)))
    if op == "-" and b > a:
        a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[op]
    word = {"+": "plus", "-": "minus", "*": "times"}[op]
    q = r.choice([f"What is {a} {word} {b}?", f"{a} {op} {b} = ?", f"Calculate {a} {op} {b}.", f"How much is {a} {word} {b}?"])
    text = f"{a} {word} {b} is {result}."
    if r.random() < 0.3:
        why = sum_steps(a, b) if op == "+" and a + b else f"{a} {op} {b} = {result}."
        return chat([user(q), answer(text, why)], thinking=True, effort=r.choice([50, 75, 75, 100, r.randint(1, 100)]))
    return chat([user(q), answer(text)])


def word_problem(r):
    n, m = r.choice(w.NAMES), r.choice(w.NAMES)
    thing = r.choice(["apples", "books", "coins", "stamps", "cards", "marbles", "pencils", "cookies"])
    a, b, c = r.randint(2, 40), r.randint(2, 20), r.randint(1, 9)
    if r.random() < 0.5:
        q, steps = f"{n} has {a} {thing} and buys {b} more. How many {thing} does {n} have now?", f"{a} + {b} = {a + b}"
        text = f"{n} has {a + b} {thing} now."
    else:
        q, steps = f"{n} has {a + c} {thing} and gives {c} to {m}. How many {thing} are left?", f"{a + c} - {c} = {a}"
        text = f"{n} has {a} {thing} left."
    if r.random() < 0.5:
        return chat([user(q), answer(text, f"The question asks for the {thing} of {n}. {steps}.")], thinking=True, effort=75)
    return chat([user(q), answer(f"{steps}. {text}")])


def lists(r):
    source = r.choice([w.NAMES, w.FOODS, w.COLORS, w.CITIES, w.PET_NAMES, w.JOBS])
    items = r.sample(source, r.randint(3, 8))
    s, i, x = ", ".join(items), r.randrange(len(items)), r.choice(source)
    q, a = r.choice([
        (f"Here is a list: {s}. What is the {w.ORDINALS[i]} item?", f"The {w.ORDINALS[i]} item is {items[i]}."),
        (f"Repeat this list: {s}.", s + "."),
        (f"Sort these alphabetically: {s}.", ", ".join(sorted(items)) + "."),
        (f"How many items are in this list: {s}?", f"There are {len(items)} items in the list."),
        (f"Reverse this list: {s}.", ", ".join(reversed(items)) + "."),
        (f"What is the last item of {s}?", f"The last item is {items[-1]}."),
        (f"Make a numbered list of {s}.", "\n".join(f"{k + 1}. {t}" for k, t in enumerate(items))),
        (f"Make a bulleted list: {s}", "\n".join("- " + t for t in items)),
        (f"Is {x} in this list: {s}?", f"Yes, {x} is the {w.ORDINALS[items.index(x)]} item in the list." if x in items else f"No, {x} is not in the list.")])
    return chat([user(q), answer(a)])


def story(r):
    p, q = r.sample(w.NAMES, 2)
    thing = r.choice([t for t in w.THINGS if not t.endswith("s")])
    (a, b), city, day = r.sample(w.PLACES, 2), r.choice(w.CITIES), r.choice(w.DAYS)
    body = (f"On {day}, {p} travelled to {city} to visit {q}. Before leaving, {p} put the {thing} {a}. Later {q} found it there and "
            f"moved it {b}. When {p} came home, the {thing} was not where it had been.")
    asks = [(f"Where did {p} put the {thing}?", f"{p} put the {thing} {a}."), (f"Who moved the {thing}?", f"{q} moved the {thing}."),
            (f"Where did {q} move the {thing}?", f"{q} moved the {thing} {b}."), (f"Which city did {p} travel to?", f"{p} travelled to {city}."),
            ("On which day did this happen?", f"It happened on {day}.")]
    r.shuffle(asks)
    turns = [user(f"Read this story and answer the question.\n\n{body}\n\nQuestion: {asks[0][0]}"), answer(asks[0][1])]
    for x, y in asks[1:r.randint(1, 4)]:
        turns += [user(x), answer(y)]
    return chat(turns)


def instructed(r):
    """a system message that shapes the answers"""
    q, a = r.choice(w.FILLER[:-1])
    name = r.choice(w.NAMES)
    system, change = r.choice([
        ("Answer in upper case.", str.upper), ("Answer with the first sentence only.", lambda t: t.split(". ")[0].rstrip(".") + "."),
        ("End every answer with the word Over.", lambda t: t + " Over."), ("Begin every answer with the word Certainly.", lambda t: "Certainly. " + t),
        (f"The user is called {name}. Use the name.", lambda t: f"{name}, " + t[0].lower() + t[1:]),
        ("You are a helpful assistant.", lambda t: t), ("You are a friendly teacher.", lambda t: "Good question! " + t),
        ("Answer as a bulleted list.", lambda t: "\n".join("- " + s.rstrip(".") + "." for s in t.split(". ")))])
    turns = [dict(role="system", content=system), user(q), answer(change(a))]
    if r.random() < 0.5:
        q, a = r.choice(w.FILLER[:-1])
        turns += [user(q), answer(change(a))]
    return chat(turns)


SMALL_TALK = (
    (["Hello", "Hello!", "Hi", "Hi there", "Hey", "Good morning", "Good evening"], ["Hello! How can I help you today?", "Hi! What can I do for you?", "Hello! What would you like to talk about?"]),
    (["How are you?", "How is it going?", "How are you today?"], ["I am doing well, thank you. How can I help you?", "All is well here, thanks for asking. What can I do for you?"]),
    (["Thank you", "Thanks!", "Thanks, that helps."], ["You are welcome!", "You are welcome. Is there anything else?", "Glad to help."]),
    (["Bye", "Goodbye", "See you later"], ["Goodbye! Have a nice day.", "Bye! Take care."]),
    (["Who are you?", "What is your name?", "What are you?", "Introduce yourself."], ["I am Mini, a very small language model that comes with Tidemill. I can chat a little, but check what I say.", "I am Mini, the little model inside Tidemill. I know some words and a few facts, and I like short questions."]),
    (["What can you do?", "What are you good at?"], ["I can chat, explain simple things, remember what you tell me, sort short lists and write small JSON objects. I am small, so please check my answers."]),
    (["Are you a human?", "Are you a person?", "Are you real?"], ["No, I am a computer program: a small language model.", "I am not a person. I am a small language model."]),
    (["Who made you?", "Where do you come from?"], ["I was trained for Tidemill, an inference engine, as its built-in model."]),
    (["Tell me a joke.", "Make me laugh."], ["Why did the computer go to the doctor? It had a virus.", "What do you call a bear with no teeth? A gummy bear.", "Why do bees have sticky hair? Because they use honeycombs.", "Why was the math book sad? It had too many problems."]))


def small_talk(r):
    turns = []
    for asks, answers in r.sample(SMALL_TALK, r.choice([1, 1, 2, 3])):
        turns += [user(r.choice(asks)), answer(r.choice(answers))]
    return chat(turns)


GENERATORS = ((recall, 5), (arithmetic, 2), (word_problem, 1), (lists, 2), (story, 2), (instructed, 1), (small_talk, 1))
