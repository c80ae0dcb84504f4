from longmlm.cli import main

main("pretrain")
