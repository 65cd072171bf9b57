"""Own questions: id, category, turns."""

QUESTIONS = [
    (1, "writing", ["Describe a lighthouse in {two} lines.", "Now without the letter e."]),
    (2, "math", ["What is 12 * 12?", "And the square root of that?"]),
    (3, "writing", ["Write a toast for a cat's birthday.", "Make it rhyme."]),
    (4, "math", ["Is 91 prime?", "Name the next prime."]),
]
