"""Each command of the pages runs, from the wheel and in an empty folder, or says why it is not run."""
