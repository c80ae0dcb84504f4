from pipelines.pretrain import main

main()
