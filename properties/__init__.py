"""The contract under the sequences of verbs that Hypothesis generates."""
