"""Operations on schedules, shared by the client, REST and the command line."""
