"""Synthetic chats of daily tasks (bookings, questions about plans), JSON answers, and tools with calls and results."""
import json

from . import words as w
from .synth import answer, chat, user


def clock(r):
    h, m = r.randint(1, 12), r.choice(["00", "15", "30", "45"])
    return r.choice([f"{h}:{m} {r.choice(['am', 'pm'])}", f"{h} {r.choice(['in the morning', 'in the evening', 'pm', 'am'])}", f"half past {h}"])


def date(r):
    n = r.randint(1, 28)
    return r.choice([f"{r.choice(w.MONTHS)} {n}{'st' if n in (1, 21) else 'nd' if n in (2, 22) else 'rd' if n in (3, 23) else 'th'}",
                     "today", "tomorrow", "the day after tomorrow", f"next {r.choice(w.DAYS)}", f"{r.choice(w.DAYS)} this week"])


# kind: (opening, [(slot, question of the assistant, answers of the user)], offer, facts that may be asked)
def task_kinds(r):
    c, d, t, n = r.choice(w.CITIES), date(r), clock(r), r.randint(1, 6)
    food, people = r.choice(w.CUISINES), f"{n} {'person' if n == 1 else 'people'}"
    phone, price, stars = f"{r.randint(200, 999)}-{r.randint(200, 999)}-{r.randint(1000, 9999)}", f"${r.randint(15, 480)}", r.choice(["3.8", "4.1", "4.3", "4.6", "4.9"])
    street = f"{r.randint(1, 990)} {r.choice(['Main Street', 'Park Avenue', 'Mill Road', 'Lake Drive', 'Station Street'])}"
    c2, band, movie = r.choice([x for x in w.CITIES if x != c]), r.choice(w.BANDS), r.choice(w.MOVIES)
    city = ("city", ["Which city should I search in?", "In which city?", "Where should I look?"], [f"In {c}, please.", c + ".", f"Look in {c}.", f"I would like it in {c}."])
    when = ("date", ["For which day?", "What date do you have in mind?", "When would you like to go?"], [f"For {d}.", d[0].upper() + d[1:] + ", please.", f"I was thinking of {d}."])
    hour = ("time", ["What time works for you?", "At what time?"], [f"At {t}.", f"{t} would be good.", f"Let us say {t}."])
    size = ("people", ["How many people will it be?", "For how many?"], [f"{people}.", f"It is for {people}.", f"Just {people}."])
    kind = ("food", ["What kind of food would you like?", "Do you have a cuisine in mind?"], [f"{food}, please.", f"Something {food}.", f"I am in the mood for {food} food."])
    place, hotel, song = r.choice(w.RESTAURANTS), r.choice(w.HOTELS), r.choice(w.SONGS)
    contact = [("What is their phone number?", f"The phone number is {phone}."), ("What is the address?", f"The address is {street}."),
               ("Is it expensive?", r.choice(["The prices are moderate.", "It is rather inexpensive.", "It is on the expensive side."])),
               ("Do they have live music?", r.choice(["Yes, they have live music.", "No, there is no live music."]))]
    return r.choice([
        ("restaurant", ["I want to find a place to eat.", "Can you find me a restaurant?", "I am hungry. Can you help me find a restaurant?"], [city, kind],
         f"I found {r.randint(2, 10)} places. How about {place} in {c}?", contact, ("Please book a table.", [hour, size], f"a table at {place} for {people} at {t}")),
        ("hotel", ["I need a hotel.", "I am looking for a place to stay.", "Find me a hotel, please."], [city, when],
         f"{hotel} in {c} has a rating of {stars} and costs {price} per night. Does that sound good?", contact, ("Yes, please reserve a room there.", [size], f"a room at {hotel} in {c} for {people}")),
        ("bus", ["I need a bus ticket.", "Can you find me a bus?", "I want to travel by bus."], [("from", ["Where are you leaving from?"], [f"From {c}.", f"I leave from {c}."]), ("to", ["Where are you going?"], [f"To {c2}.", f"I am going to {c2}."]), when],
         f"There is a bus from {c} to {c2} that leaves at {t}. The ticket costs {price}.", [("How long does it take?", f"It takes about {r.randint(2, 9)} hours."), ("Does it have any stops?", r.choice(["No, it is a direct bus.", "It has one transfer."]))],
         ("Great, buy the tickets.", [size], f"bus tickets for {people} from {c} to {c2} at {t}")),
        ("flight", ["I want to book a flight.", "Search for a flight, please.", "I am planning a trip and need a flight."], [("from", ["Which city are you flying from?"], [f"From {c}."]), ("to", ["What is your destination?"], [f"{c2}.", f"I am flying to {c2}."]), when],
         f"There is a flight to {c2} that leaves at {t} and costs {price}. Would you like it?", [("Which airport does it leave from?", f"It leaves from {c} International Airport."), ("Is it a direct flight?", r.choice(["Yes, it is a direct flight.", "No, it has one stop."]))],
         ("Yes, book it.", [size], f"a flight from {c} to {c2} for {people}")),
        ("movie", ["I would like to see a movie.", "Are there any good movies on?", "What can I watch at the cinema?"], [city, when],
         f"{movie} is showing in {c}. Are you interested?", [("What kind of movie is it?", f"It is {r.choice(['a comedy', 'a drama', 'a mystery', 'an animated film', 'a documentary'])}."), ("How much are the tickets?", f"They cost ${r.randint(8, 18)} each.")],
         ("Sounds good. Buy tickets.", [hour, size], f"tickets for {movie} for {people} at {t}")),
        ("concert", ["I want to go to a concert.", "Find me some events.", "What events are there?"], [city, when],
         f"{band} is playing in {c}. It starts at {t}.", [("What is the address of the venue?", f"The venue is at {street}."), ("How much is a ticket?", f"Tickets cost {price}.")],
         ("I want to buy tickets.", [size], f"tickets for {band} in {c} for {people}")),
        ("dentist", ["I need to see a dentist.", "Can you find me a doctor?", "I am looking for a hair stylist."], [city],
         f"I found {r.randint(2, 9)}. There is one at {street} with a rating of {stars}.", contact, ("Make an appointment, please.", [when, hour], f"an appointment on {d} at {t}")),
        ("music", ["Play some music.", "I want to listen to a song."], [("band", ["Which artist do you like?"], [f"Something by {band}.", band + "."])],
         f"How about {song} by {band}?", [("Which year is it from?", f"It was released in {r.randint(1968, 2019)}."), ("What genre is it?", f"It is {r.choice(['pop', 'rock', 'folk', 'jazz', 'country'])}.")],
         ("Yes, play it on the kitchen speaker.", [], f"{song} on the kitchen speaker")),
        ("weather", [f"What is the weather like in {c}?", f"How is the weather going to be in {c}?", f"Will it rain in {c}?"], [when] if r.random() < .4 else [],
         f"The average temperature will be {r.randint(40, 99)} degrees Fahrenheit with {a_percent(r)} chance of rain.",
         [("How windy will it be?", f"The wind will be about {r.randint(1, 20)} miles per hour."), ("What about the humidity?", f"The humidity will be around {r.randint(5, 90)} percent.")], None)])


def a_percent(r):
    n = r.randint(1, 95)
    return ("an " if n in (8, 11, 18) or 80 <= n < 90 else "a ") + f"{n} percent"


def booking(r):
    turns = []
    for _ in range(r.choice([1, 1, 2])):
        _, openings, slots, offer, asks, confirm = task_kinds(r)
        say = r.choice(openings)
        for _, questions, answers in r.sample(slots, len(slots)):
            turns += [user(say), answer(r.choice(questions))]
            say = r.choice(answers)
        turns += [user(say), answer(offer)]
        for q, a in r.sample(asks, r.randint(0, len(asks))):
            turns += [user(q), answer(a)]
        if confirm and r.random() < 0.75:
            say, more, what = confirm
            for _, questions, answers in more:
                turns += [user(say), answer(r.choice(questions))]
                say = r.choice(answers)
            turns += [user(say), answer(f"{r.choice(['Please confirm', 'Let me check', 'To confirm'])}: {what}. {r.choice(['Is that correct?', 'Is this right?', 'Shall I go on?'])}"),
                      user(r.choice(["Yes, that is correct.", "Yes, please.", "That is right.", "Yes, go ahead."])),
                      answer(r.choice(["It is done. Your reservation is confirmed.", "Done! Everything is set.", "Your booking was successful."]))]
    turns += [user(r.choice(["Thanks, that is all.", "No, thank you. Bye.", "That is all I need."])), answer(r.choice(["Have a great day!", "You are welcome. Goodbye!", "Enjoy!"]))]
    return chat(turns)


def person(r):
    name, last = r.choice(w.NAMES), r.choice(w.SURNAMES)
    return dict(name=f"{name} {last}", age=r.randint(18, 80), city=r.choice(w.CITIES), job=r.choice(w.JOBS))


TYPES = dict(name="string", age="integer", city="string", job="string", item="string", price="number", quantity="integer", color="string", pets="array")


def json_answer(r):
    """a sentence to be given back as an object, under a response format or asked for in words"""
    if r.random() < 0.5:
        o = person(r)
        text = f"{o['name']} is {o['age']} years old, lives in {o['city']} and works as a {o['job']}."
        if r.random() < 0.3:
            o["pets"] = r.sample(w.PET_NAMES, r.randint(0, 3))
            text += " Pets: " + (", ".join(o["pets"]) or "none") + "."
    else:
        o = dict(item=r.choice(w.THINGS), color=r.choice(w.COLORS), price=r.choice([r.randint(1, 300), r.randint(100, 9999) / 100]), quantity=r.randint(1, 12))
        text = f"The order is for {o['quantity']} {o['color']} {o['item']} at {o['price']} dollars each."
    keys = r.sample(list(o), r.randint(2, len(o))) if r.random() < 0.6 else list(o)
    o = {k: o[k] for k in keys}
    reply = json.dumps(o, ensure_ascii=False) if r.random() < 0.7 else json.dumps(o, ensure_ascii=False, indent=2)
    ask = r.choice([f"Give me {', '.join(keys)} as JSON: {text}", f"{text}\n\nExtract {', '.join(keys)} as a JSON object.",
                    f"Write this as json with the keys {', '.join(keys)}. {text}"])
    form, pick = None, r.random()
    if pick < 0.35:
        form = dict(type="json_object")
    elif pick < 0.75:
        form = dict(type="object", properties={k: dict(type=TYPES[k]) for k in keys}, required=keys, additionalProperties=False)
    system = [dict(role="system", content="You answer in JSON.")] if r.random() < 0.2 else []
    return chat(system + [user(ask), answer(reply)], response_format=form)


def tool(name, description, **properties):
    return dict(type="function", function=dict(name=name, description=description, parameters=dict(
        type="object", properties={k: dict(type=v) for k, v in properties.items()}, required=list(properties))))


def tool_uses(r):
    """[(tool, question, arguments, result, answer)]"""
    c, t, a, b = r.choice(w.CITIES), r.choice(w.THINGS), r.randint(2, 99), r.randint(2, 99)
    deg, sky, name, day = r.randint(-5, 35), r.choice(["sunny", "cloudy", "rainy", "windy"]), r.choice(w.NAMES), r.choice(w.DAYS)
    hour, price, mail = f"{r.randint(0, 23):02d}:{r.choice(['00', '15', '30', '45'])}", r.randint(3, 400), r.choice(["I will be late.", "Dinner is ready.", "See you soon.", "The meeting is moved."])
    return [
        (tool("get_weather", "Current weather of a city", city="string"), r.choice([f"What is the weather in {c}?", f"Is it warm in {c} right now?", f"How is the weather in {c}?"]), dict(city=c),
         json.dumps(dict(temperature=deg, sky=sky)), f"It is {sky} in {c} with {deg} degrees."),
        (tool("get_time", "Local time of a city", city="string"), r.choice([f"What time is it in {c}?", f"Tell me the time in {c}."]), dict(city=c), hour, f"It is {hour} in {c}."),
        (tool("calculate", "Evaluate an expression", expression="string"), r.choice([f"What is {a} times {b}?", f"Calculate {a} * {b}."]), dict(expression=f"{a} * {b}"), str(a * b), f"{a} times {b} is {a * b}."),
        (tool("get_price", "Price of an item in dollars", item="string", quantity="integer"), f"How much do {a} {t} cost?", dict(item=t, quantity=a), json.dumps(dict(total=price)), f"{a} {t} cost {price} dollars."),
        (tool("set_reminder", "Remind the user", text="string", day="string", time="string"), f"Remind me to call {name} on {day} at {hour}.", dict(text=f"Call {name}", day=day, time=hour), "ok", f"I will remind you to call {name} on {day} at {hour}."),
        (tool("send_message", "Send a message to a person", to="string", text="string"), f"Send {name} a message: {mail}", dict(to=name, text=mail), "sent", f"I sent the message to {name}."),
        (tool("set_light", "Switch a lamp", room="string", on="boolean"), f"Turn {'on' if a % 2 else 'off'} the light in the kitchen.", dict(room="kitchen", on=bool(a % 2)), "ok", f"The kitchen light is {'on' if a % 2 else 'off'} now."),
        (tool("search", "Search the web", query="string"), f"Search for {r.choice(w.TOPICS)} facts.", None, "3 results", "I found 3 results.")]


def tools(r):
    uses = tool_uses(r)
    for i, u in enumerate(uses):
        if u[2] is None:
            q = u[1][len("Search for "):-1]
            uses[i] = u[:2] + (dict(query=q),) + u[3:]
    r.shuffle(uses)
    offered = [u[0] for u in uses[:r.randint(1, 4)]]
    thinking = r.random() < 0.35
    why = lambda text: text if thinking else None
    turns = [dict(role="system", content=r.choice(["You are a helpful assistant.", "Use the tools when they help.", "Be brief."]))] if r.random() < 0.4 else []
    if r.random() < 0.15:
        q, a = r.choice(w.FILLER)
        turns += [user(q), answer(a, why("No tool is needed for this."))]
    n = 2 if len(offered) > 1 and r.random() < 0.2 else 1
    picked = uses[:n]
    calls = [dict(id=f"call_{i}", type="function", function=dict(name=u[0]["function"]["name"], arguments=json.dumps(u[2]))) for i, u in enumerate(picked)]
    turns += [user(" ".join(u[1] for u in picked)),
              dict(answer("", why("I should call " + " and ".join(c["function"]["name"] for c in calls) + ".")), tool_calls=calls)]
    if r.random() < 0.8:
        turns += [dict(role="tool", tool_call_id=c["id"], content=u[3]) for c, u in zip(calls, picked)]
        turns += [answer(" ".join(u[4] for u in picked), why("The tool has answered."))]
    return chat(turns, tools=offered, thinking=thinking, effort=75)


GENERATORS = ((booking, 4), (json_answer, 2), (tools, 3))
