"""The words of the built-in world: name pieces, kinds of entity, relations and their phrasings.

All names are put together from some 230 capitalised words, so that a small vocabulary can hold each as one
token.  In the sentences `{s}` stands for the subject and `{o}` for the object of a relation, `{topic}` and
`{year}` for the two attributes that every entity has.
"""

from __future__ import annotations

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = _words(
    "Nora Edwin Clara Hugo Irene Felix Alma Victor Ida Oscar Selma Anton Greta Conrad Lydia Walter Zoë "
    "Martin Stella Rupert Esther Julian Paula Leonard Agnes René Helen Gilbert Ruth Simon Olga Peter Iris "
    "Noah Eva Jonas"
)
_LAST = _words(
    "Vale Harrow Lind Mercer Thorne Quill Barlow Finch Keller Moss Norden Pike Rowan Sayer Tell Upton "
    "Wick Yarrow Ames Brandt Cole Dorn Emery Frost Grange Holm Ivers Jarvis Knox Lowell Marsh Núñez Orley "
    "Penn Reed Stroud"
)
_PLACE = _words(
    "Amber Cedar Copper Elder Fallow Granite Hazel Ivory Juniper Larch Maple Olive Pepper Rose Saffron "
    "Stone Thistle Willow Winter Åker Birch Clover Fern Ginger Linden Marble Slate Walnut"
)
_PLACE_END = _words("Ford Hill Bridge Cross Field Gate Haven Mill Point Well Green Port")
_RIVER = _words("Upper Lower Little Great Black White Red Blue Swift Cold Deep Long")
_RIVER_NAME = _words(
    "Tarn Oder Isel Brisk Calder Dove Ebba Fenn Gauja Hull Indre Jura Kemi Lagan Mura Nidd Ouse Pran Ruhe "
    "Sava Tweed Ure Wye Yare"
)
_ADJECTIVE = _words(
    "Silent Broken Golden Hidden Distant Empty Gentle Hollow Last Lonely Narrow Paper Quiet Restless "
    "Scarlet Second Sleeping Velvet Wooden Burning"
)
_NOUN = _words(
    "Harbour Garden Letter Mirror Orchard Portrait Promise Road Shadow Summer Tower Voyage Window Island "
    "Lantern Clock Anchor Bell Candle Crown"
)
_SHIP = _words(
    "Brave Noble Proud Lucky Merry Royal Bold Faithful Eager Fair Wild Bright Happy Loyal Steady Young"
)
_ANIMAL = _words(
    "Heron Falcon Otter Dolphin Swan Raven Lynx Badger Stag Gull Marten Plover Seal Tern Viper Whale "
    "Beaver Crane"
)


@dataclass(frozen=True)
class Kind:
    """A kind of entity: its name pieces, its topics, and how its two attributes are put into words.

    `names` are the parts of a name, one choice each; `clues` describe an entity by its two attributes alone;
    `openings` are the first sentences of its page; `facts` the same as two single statements (topic, year).
    """

    name: str
    names: tuple[tuple[str, ...], ...]
    topics: tuple[str, ...]
    clues: tuple[str, ...]
    openings: tuple[str, ...]
    facts: tuple[str, str]
    year: str


@dataclass(frozen=True)
class Relation:
    """A functional relation: each subject of kind `subject` has exactly one object (kind None: a year).

    `phrase` is its noun phrase in a question, `query` what one types to look it up, `statement` the rubric,
    `sentences` its phrasings on pages.
    """

    name: str
    subject: str
    object: str | None
    phrase: str
    query: str
    statement: str
    sentences: tuple[str, ...]


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "person",
            (_FIRST, _LAST),
            _words("painter pilot baker doctor poet sculptor tailor lawyer singer teacher chemist weaver"),
            ("the {topic} born in {year}", "a {topic} who was born in {year}"),
            (
                "{s} was a {topic} born in {year}.",
                "{s}, born in {year}, worked as a {topic}.",
                "Born in {year}, {s} became known as a {topic}.",
            ),
            ("{s} was a {topic}.", "{s} was born in {year}."),
            "birth year",
        ),
        Kind(
            "town",
            (_PLACE, _PLACE_END),
            _words("glass cheese lace honey salt leather beer silk pottery ribbons cider wool"),
            (
                "the town founded in {year} and known for its {topic}",
                "a town known for {topic} and founded in {year}",
            ),
            (
                "{s} is a town known for its {topic} and founded in {year}.",
                "Founded in {year}, {s} is a town that lives on {topic}.",
                "{s} is an old {topic} town dating from {year}.",
            ),
            ("{s} is a town known for its {topic}.", "The town {s} was founded in {year}."),
            "founding year",
        ),
        Kind(
            "river",
            (_RIVER, _RIVER_NAME, ("River",)),
            _words("trout salmon roach eels perch carp crayfish herring mussels frogs lilies gold"),
            (
                "the river first mapped in {year} and rich in {topic}",
                "a river rich in {topic} and mapped in {year}",
            ),
            (
                "The {s} is rich in {topic} and was first mapped in {year}.",
                "First mapped in {year}, the {s} is a river full of {topic}.",
                "The {s}, mapped in {year}, is a river visited for its {topic}.",
            ),
            ("The {s} is rich in {topic}.", "The {s} was first mapped in {year}."),
            "mapping year",
        ),
        Kind(
            "novel",
            (("The",), _ADJECTIVE, _NOUN),
            _words("chess storms bees exile twins gambling mines comets theatre grief spies orphans"),
            ("the novel about {topic} published in {year}", "a {year} novel about {topic}"),
            (
                "{s} is a novel about {topic} published in {year}.",
                "{s}, a novel of {year}, tells a story about {topic}.",
                "Published in {year}, {s} is a long novel about {topic}.",
            ),
            ("The novel {s} is about {topic}.", "{s} was published in {year}."),
            "publication year",
        ),
        Kind(
            "company",
            (_LAST, ("& Sons", "Works", "Traders", "Foundry", "Brothers", "& Partners", "Mills", "Stores")),
            _words(
                "pianos bicycles umbrellas pumps cameras stoves lamps gloves tractors scissors pencils boilers"
            ),
            ("the company founded in {year} that makes {topic}", "a maker of {topic} founded in {year}"),
            (
                "{s} is a company that makes {topic} and was founded in {year}.",
                "{s} has been a maker of {topic} since it was founded in {year}.",
                "Founded in {year}, {s} is a company selling {topic}.",
            ),
            ("{s} makes {topic}.", "The company {s} was founded in {year}."),
            "founding year",
        ),
        Kind(
            "museum",
            (_PLACE, _NOUN, ("Museum",)),
            _words("maps fossils masks coins toys violins armour kites carpets stamps dolls radios"),
            ("the museum opened in {year} that collects {topic}", "a museum of {topic} opened in {year}"),
            (
                "The {s} collects {topic} and was opened in {year}.",
                "The {s}, opened in {year}, shows a collection of {topic}.",
                "Opened in {year}, the {s} is a museum for {topic}.",
            ),
            ("The {s} collects {topic}.", "The {s} was opened in {year}."),
            "opening year",
        ),
        Kind(
            "ship",
            (_SHIP, _ANIMAL),
            _words("timber grain coal tea cotton sugar spices wine iron cattle bricks oil"),
            (
                "the ship launched in {year} that carried {topic}",
                "a ship that carried {topic}, launched in {year}",
            ),
            (
                "{s} is a ship that carried {topic} and was launched in {year}.",
                "Launched in {year}, {s} was a ship built to carry {topic}.",
                "{s} was a {topic} ship launched in {year}.",
            ),
            ("The ship {s} carried {topic}.", "{s} was launched in {year}."),
            "launch year",
        ),
        Kind(
            "festival",
            (_PLACE, _ANIMAL, ("Festival",)),
            _words(
                "jazz juggling poetry archery puppets dancing cooking ballads rowing fireworks riddles opera"
            ),
            ("the festival of {topic} first held in {year}", "a {topic} festival first held in {year}"),
            (
                "The {s} is devoted to {topic} and was first held in {year}.",
                "First held in {year}, the {s} is a feast of {topic}.",
                "The {s}, first held in {year}, draws crowds with {topic}.",
            ),
            ("The {s} is devoted to {topic}.", "The {s} was first held in {year}."),
            "first year",
        ),
    )
}


def article(kind: str) -> str:
    """What a name of this kind needs in running text."""
    return "the " if kind in ("river", "museum", "festival") else ""


def _relations(subject: str, *rows: tuple[str, str, str]) -> tuple[Relation, ...]:
    """Rows of (name, object kind, further sentences parted by "|"); the plain statement is always the first."""
    made = []
    for name, kind, further in rows:
        phrase = f"the {name} of {{s}}"
        statement = f"The {name} of {article(subject)}{{s}} is {article(kind)}{{o}}."
        made.append(Relation(name, subject, kind, phrase, name, statement, (statement, *further.split("|"))))
    return tuple(made)


def _year(kind: Kind) -> Relation:
    """The year attribute as a last hop; the opening of the page states it."""
    statement = kind.facts[1].replace("{year}", "{o}")
    phrase = f"the {kind.year} of {{s}}"
    return Relation(kind.year, kind.name, None, phrase, kind.year, statement, ())


RELATIONS = (
    *_relations(
        "person",
        ("birthplace", "town", "{s} was born in the town of {o}.|{s} came from {o}, the birthplace."),
        ("mentor", "person", "{s} learned everything from a mentor, {o}.|{o} was the mentor who trained {s}."),
        (
            "employer",
            "company",
            "{s} spent ten years with one employer, {o}.|For a while {o} was the employer of {s}.",
        ),
        ("favourite novel", "novel", "{s} named {o} as a favourite novel.|A favourite novel of {s} was {o}."),
    ),
    *_relations(
        "town",
        ("river", "river", "The {o} is the river that flows through {s}.|{s} stands on a river, the {o}."),
        ("mayor", "person", "{o} was elected mayor of {s}.|{s} has a popular mayor, {o}."),
        ("ferry", "ship", "{s} is served by the ferry {o}.|The old ferry {o} belongs to {s}."),
    ),
    *_relations(
        "river",
        ("mouth", "town", "The {s} has its mouth near {o}.|At its mouth the {s} passes {o}."),
        (
            "explorer",
            "person",
            "{o} was the first explorer of the {s}.|The {s} was followed to its source by the explorer {o}.",
        ),
        (
            "celebration",
            "festival",
            "People hold the {o} in celebration of the {s}.|The {s} has its own celebration, the {o}.",
        ),
    ),
    *_relations(
        "novel",
        ("author", "person", "{s} was written by the author {o}.|{o} is the author who wrote {s}."),
        ("setting", "town", "{s} has its setting in {o}.|{o} is the setting in which {s} plays."),
        ("publisher", "company", "{s} was printed by the publisher {o}.|{o} acted as publisher of {s}."),
    ),
    *_relations(
        "company",
        (
            "founder",
            "person",
            "{o} was the founder who started {s}.|After some years its founder {o} sold {s}.",
        ),
        (
            "head office",
            "town",
            "{s} has its head office in {o}.|From its head office in {o}, {s} sells abroad.",
        ),
        (
            "sponsored museum",
            "museum",
            "{s} pays for a sponsored museum, the {o}.|The {o} is the museum sponsored by {s}.",
        ),
    ),
    *_relations(
        "museum",
        ("location", "town", "The {s} has its location in {o}.|{o} is the location of the {s}."),
        ("director", "person", "{o} is the director who runs the {s}.|The {s} has a new director, {o}."),
        (
            "main exhibit",
            "ship",
            "The {s} has one main exhibit, the ship {o}.|In the {s} the main exhibit is a model of {o}.",
        ),
    ),
    *_relations(
        "ship",
        ("captain", "person", "{s} sailed under captain {o}.|{o} was the captain who commanded {s}."),
        ("builder", "company", "{s} was made by the builder {o}.|{o} is named as the builder of {s}."),
        ("home port", "town", "{s} had its home port at {o}.|{o} is the home port of {s}."),
    ),
    *_relations(
        "festival",
        ("venue", "town", "The {s} has its venue in {o}.|Every summer {o} is the venue of the {s}."),
        ("host", "person", "{o} was the host who opened the {s}.|The {s} had a famous host, {o}."),
        ("sponsor", "company", "The {s} is paid for by its sponsor, {o}.|{o} became the sponsor of the {s}."),
    ),
    *(_year(kind) for kind in KINDS.values()),
)

FILLERS = (
    "Little else is known.",
    "Visitors often ask about it.",
    "Local papers have written about it more than once.",
    "The story is told to this day.",
    "Much of the archive was lost in a fire.",
    "An old song recalls it.",
)

QUESTIONS = (
    "What is {x}?",
    "Name {x}.",
    "Find {x}.",
    "Which is {x}?",
    "I am looking for {x}. What is it?",
    "Can you tell me {x}?",
)
