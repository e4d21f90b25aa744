"""Takes the guards of the code out, one at a time, and sees a named test fail for each."""
