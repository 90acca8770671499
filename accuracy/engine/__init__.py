"""Language models of transformers behind a prefix cache, used as a server uses one."""
