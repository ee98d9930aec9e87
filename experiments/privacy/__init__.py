"""What the server of FedSS learns of its clients, measured."""
