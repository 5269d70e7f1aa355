"""What every door does with schedules, once: the client, REST and the command line call it."""
