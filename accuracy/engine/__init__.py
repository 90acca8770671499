"""An engine that serves language models of transformers with a prefix cache, as an inference server does."""
