"""What a newcomer does first, to the letter of the README, and how long it takes."""
