"""The prompts whose replies the shipped rank table is counted from: tasks times topics.

None of them is a prompt of bench/, so that the benchmarks measure the table on other text.
"""

from __future__ import annotations

TASKS = (
    "Explain {topic} to someone who has never heard of it.",
    "Write a short story in which {topic} plays a part.",
    "List seven facts about {topic}, each in one sentence.",
    "What are common mistakes people make about {topic}, and how can they avoid them?",
    "Write an email to a colleague that sums up what we know about {topic}.",
    "Give me a step-by-step plan for learning about {topic} in a month.",
    "Compare {topic} with something similar and say when to choose which.",
    "Write a dialogue between a teacher and a student about {topic}.",
    "Write a Python program with comments that has to do with {topic}.",
    "Make a Markdown table with five rows about {topic}.",
    "Summarise the history of {topic} in two paragraphs.",
    "Write a poem of three stanzas about {topic}.",
    "What questions should I ask an expert on {topic}?",
    "Give arguments for and against spending public money on {topic}.",
    "Return a JSON object that describes {topic} with nested fields.",
    "Translate into French and Spanish: I would like to know more about {topic}.",
)
TOPICS = (
    "solar panels",
    "sorting algorithms",
    "chess openings",
    "medieval trade routes",
    "bees and pollination",
    "database indexes",
    "baking sourdough",
    "the immune system",
    "personal budgets",
    "volcanoes",
    "public libraries",
    "jazz music",
    "electric bicycles",
    "coral reefs",
    "negotiating a salary",
    "space telescopes",
    "growing tomatoes",
    "network security",
    "probability",
    "the Roman empire",
)


def prompts() -> list[str]:
    """Every second pair of task and topic: 160 prompts."""
    return [
        task.format(topic=topic)
        for t, task in enumerate(TASKS)
        for n, topic in enumerate(TOPICS)
        if (t + n) % 2 == 0
    ]
