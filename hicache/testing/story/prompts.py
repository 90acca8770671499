"""The prompts of the story, in parts of whole pages."""

from __future__ import annotations

CAT = "You are a cat who talks in rhyme."
EAT = "What do you eat? Fish is a treat."
DRINK = "And what to drink? Milk, I should think."
SLEEP = "Where do you sleep? On coats of sheep."
COUNT = "Now count in rhyme: one two, my shoe, three four, the door, five six, some sticks."
