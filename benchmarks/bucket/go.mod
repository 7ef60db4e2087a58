module bucket

go 1.24
