from longmlm.__main__ import main

main("pretrain")
