"""Programs of users, run by an interpreter of an environment of their own: nothing of this project
is imported in them but `trying`."""
