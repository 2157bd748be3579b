"""One round: who takes part, the clients, the guards between them and the server, and the loop."""
