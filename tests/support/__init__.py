"""What tests lean on: real servers, and disks and networks that fail on command. No fakes of our parts."""
