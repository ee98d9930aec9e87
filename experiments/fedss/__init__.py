"""FedSS: Tables 1 to 4 and Figures 3 to 10."""
