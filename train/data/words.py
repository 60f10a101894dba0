"""Word lists of the synthetic chats."""
NAMES = ("Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maya Noah Olga Paul Quinn Rosa Sam Tara Uma Victor Wendy "
         "Xavier Yara Zoe Alice Bruno Chloe Daniel Elena Frank Gina Hugo Ivan Julia Karl Lena Marco Nina Oscar Petra Ravi Sofia Tom "
         "Vera Amir Bianca Carlos Diana Erik Fatima George Hana Igor Jonas Kira Liam Mona Nadia Omar Priya Ruth Simon").split()
SURNAMES = "Adams Berg Costa Dietz Evans Fischer Garcia Hill Ito Jensen Klein Lopez Moore Novak Olsen Patel Reed Silva Turner Weber".split()
THINGS = ("keys wallet passport notebook umbrella camera laptop charger glasses phone headphones hat scarf letter map flute guitar "
          "kettle lamp torch ladder hammer bicycle helmet suitcase backpack diary blanket telescope violin").split()
PLACES = ["in the blue drawer", "under the stairs", "on the kitchen shelf", "behind the old clock", "in the garden shed",
          "next to the fireplace", "inside the red box", "on top of the piano", "in the car", "at the office", "beside the window",
          "under the bed", "in the hall closet", "on the balcony", "in the attic", "in the basement", "behind the curtain"]
CITIES = ("London Paris Rome Oslo Tokyo Lima Cairo Delhi Sydney Boston Lisbon Prague Vienna Dublin Athens Madrid Berlin Seoul "
          "Nairobi Toronto Chicago Denver Seattle Austin Portland Phoenix Oakland Fresno Atlanta Miami Helsinki Warsaw").split()
JOBS = ("teacher nurse carpenter baker pilot farmer engineer painter librarian doctor musician gardener chef writer sailor lawyer "
        "photographer dentist").split()
PETS = ["a cat", "a dog", "a parrot", "a rabbit", "a goldfish", "a hamster"]
PET_NAMES = "Biscuit Shadow Luna Pepper Milo Ginger Rocket Daisy Smokey Olive Peanut Clover Hazel Pixel".split()
COLORS = "red blue green yellow purple orange black white silver brown pink gray".split()
FOODS = "pasta soup salad curry rice pancakes sushi bread apples cheese chocolate tomatoes mushrooms noodles dumplings".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
CUISINES = "Italian Mexican Thai Indian Korean French Greek Japanese Chinese vegetarian".split()
RESTAURANTS = ["The Olive Tree", "Blue Door Cafe", "Casa Luna", "Golden Lotus", "Harbor Grill", "Little Saigon", "Mama Rosa",
               "Old Mill Kitchen", "Red Lantern", "Saffron House", "The Copper Pot", "Garden Table"]
HOTELS = ["Hotel Aurora", "The Grand View", "Riverside Inn", "Park Lane Hotel", "City Garden Hotel", "Seaside Lodge", "Maple Suites"]
MOVIES = ["The Silent Harbor", "Midnight Express Train", "A Summer in Lisbon", "The Last Lighthouse", "Paper Moons", "Dragon Valley",
          "Two Left Shoes", "The Clockmaker"]
SONGS = ["Blue River", "Morning Light", "Dancing Alone", "Paper Planes", "Golden Road", "Winter Song", "Far From Home"]
BANDS = ["The Lanterns", "Nora Lake", "Silver Fox", "The Night Trains", "Amber Skies", "Jonas and the Sea"]
TOPICS = (
    "a volcano|an earthquake|the moon|a glacier|a rainbow|photosynthesis|gravity|the water cycle|a black hole|the sun|a star|a planet|"
    "an atom|a molecule|electricity|magnetism|evolution|a fossil|an ecosystem|a rainforest|a desert|an ocean|a coral reef|a tsunami|"
    "a hurricane|a tornado|lightning|climate|weather|a river|a lake|a mountain|an island|a cave|a bee|a butterfly|a spider|a whale|a dolphin|"
    "a shark|an octopus|a penguin|an elephant|a lion|a bat|a bird|a dinosaur|a tree|a flower|a seed|a mushroom|bacteria|a virus|a cell|DNA|"
    "the heart|the brain|the lungs|the skin|a bone|a muscle|blood|sleep|a dream|memory|a vitamin|protein|sugar|salt|bread|cheese|chocolate|"
    "coffee|tea|rice|a potato|an apple|honey|soup|a sandwich|democracy|a constitution|an election|a law|a court|a city|a village|a country|"
    "a map|a museum|a library|a school|a university|money|a bank|a market|trade|inflation|a tax|a budget|insurance|a contract|a computer|"
    "a program|an algorithm|a database|the internet|a website|an email|a robot|artificial intelligence|a neural network|a smartphone|a camera|a battery|"
    "an engine|a bicycle|a car|a train|an airplane|a ship|a bridge|a tunnel|a telescope|a microscope|a clock|a calendar|a compass|paper|glass|"
    "steel|plastic|wood|gold|a diamond|oil|coal|solar power|wind power|a dam|a nuclear reactor|recycling|pollution|a poem|a novel|a story|a play|"
    "a song|an orchestra|a piano|a guitar|a painting|a sculpture|architecture|photography|a film|theatre|dance|a holiday|a birthday|a wedding|"
    "friendship|kindness|courage|honesty|happiness|anger|fear|stress|a habit|exercise|yoga|running|swimming|football|chess|a puzzle|a game|hiking|"
    "camping|gardening|cooking|baking|reading|writing|travel|a language|grammar|a word|an alphabet|mathematics|a number|zero|a fraction|a triangle|a circle|"
    "geometry|algebra|probability|statistics|an experiment|a hypothesis|a theory|history|the Roman Empire|ancient Egypt|ancient Greece|the Middle Ages|"
    "the Renaissance|the Industrial Revolution|the French Revolution|the printing press|the steam engine|the telephone|the space race|astronomy|biology|"
    "chemistry|physics|geography|psychology|sociology|economics|philosophy|ethics|anthropology|politics|a republic|a monarchy|human rights|a newspaper|"
    "an interview|a meeting|a job|a team|a leader|a plan|a goal|a budget for a family|first aid|a fever|a cold|a headache|washing hands|healthy food").split("|")
FILLER = (
    ("What should I cook tonight?", "You could make a simple vegetable soup with bread. It is quick, warm and filling."),
    ("How do I sleep better?", "Go to bed at the same time each day, keep the room dark and cool, and avoid screens for an hour before bed."),
    ("Tell me something about the moon.", "The moon goes around the Earth about once every twenty-seven days, and its pull causes the tides."),
    ("Why do leaves change color?", "In autumn, trees stop making the green pigment chlorophyll, so the yellow and red pigments can be seen."),
    ("How does a bicycle stay up?", "When a bicycle moves, small steering corrections keep its wheels under its weight, so it stays balanced."),
    ("What is a good way to learn a language?", "Practice a little every day, listen to native speakers, and use new words in real conversations."),
    ("How do I make tea?", "Boil fresh water, pour it over the tea, wait three to five minutes, and then remove the leaves or the bag."),
    ("Why is exercise good for you?", "Exercise makes your heart and muscles stronger, improves your mood, and helps you sleep."),
    ("What makes bread rise?", "Yeast eats the sugar in the dough and gives off carbon dioxide. The gas makes bubbles, and they lift the dough."),
    ("How do birds find their way?", "Many birds use the sun, the stars, landmarks and the Earth's magnetic field on long journeys."),
    ("Can you suggest a hobby?", "You could try gardening, drawing, hiking or an instrument. Each is easy to begin and rewarding with time."),
    ("What is the water cycle?", "Water evaporates from seas and lakes, forms clouds, falls as rain or snow, and flows back to the sea."),
    ("How can I focus at work?", "Choose one task, turn off notifications, work for twenty-five minutes, and then take a short break."),
    ("Thank you!", "You are welcome! Let me know if there is anything else I can help you with."))
