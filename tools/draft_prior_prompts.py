"""The prompts whose replies the shipped draft prior is counted from.

None of them is a prompt of bench/, so that the benchmarks measure the prior on other text.
"""

from __future__ import annotations

from tools.rank_table_prompts import TASKS, TOPICS

MORE_TASKS = (
    "{topic}?",
    "What is {topic}?",
    "How does one get started with {topic}?",
    "Tell me something surprising about {topic}.",
    "Help me with {topic}, please.",
    "Give me ten ideas for a talk about {topic}.",
    "Write a tweet about {topic}.",
    "Write a product description that has to do with {topic}.",
    "I have an exam about {topic} tomorrow. What must I know?",
    "Why do people care about {topic}?",
    "Who was important in the history of {topic}, and why?",
    "Write a formal letter of complaint that mentions {topic}.",
    "Write a job advertisement for a specialist in {topic}.",
    "Write a recipe or a procedure inspired by {topic}, with numbered steps.",
    "Make a packing or shopping list for a weekend with {topic}.",
    "My friend is worried about {topic}. What should I tell her?",
    "Write a JavaScript function that is useful for {topic}.",
    "Write a SQL query for a database about {topic}.",
    "Write a Python class that models {topic}, and explain it.",
    "Write a shell script for a project about {topic}.",
    "Fix this code and say what was wrong: for i in range(10) print('{topic}')",
    "A class of 28 pupils studies {topic} for 45 minutes a day. How many hours is that in a week?",
    "Estimate what {topic} costs per year. Show the calculation.",
    "Rewrite more politely: I do not want to hear about {topic} again.",
    "Correct the grammar: me and him has learn {topic} since three year.",
    "Classify this sentence as positive, neutral or negative: {topic} changed my life.",
    "Name five books or films about {topic} as a bulleted list.",
    "Explique en français ce que vous savez sur ce sujet: {topic}.",
    "Erkläre mir auf Deutsch: {topic}.",
    "Explica en español qué es {topic}.",
    "Convert to YAML: name {topic}, level 3, tags useful and new.",
    "Write a short news article about {topic}.",
)
MORE_TOPICS = (
    "photosynthesis",
    "unit testing",
    "marathon training",
    "the water cycle",
    "house plants",
    "interviewing for a first job",
    "moving to another city",
    "black holes",
    "bicycle repair",
    "the French Revolution",
    "machine learning",
    "sleep",
    "sailing",
    "saving energy at home",
    "dogs in small flats",
    "version control",
    "wooden furniture",
    "vaccines",
    "the stock market",
    "public speaking",
)


def prompts() -> list[str]:
    """Tasks times topics, every third pair."""
    tasks, topics = TASKS + MORE_TASKS, TOPICS + MORE_TOPICS
    return [
        task.format(topic=topic)
        for t, task in enumerate(tasks)
        for n, topic in enumerate(topics)
        if (t + n) % 3 == 0
    ]
