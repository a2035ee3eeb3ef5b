"""Commands that answer prompts: `outrider chat` and `outrider reference`."""
