// Searches a CARE vector by text. The server asks `care serve`, because its inference.address says so.
//
//	go run . COLLECTION VECTOR MODEL QUERY
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/qdrant/go-client/qdrant"
)

func main() {
	collection, vector, model, query := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	client, err := qdrant.NewClient(&qdrant.Config{Host: "localhost", Port: port()})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	hits, err := client.Query(context.Background(), &qdrant.QueryPoints{
		CollectionName: collection,
		Using:          &vector,
		Query:          qdrant.NewQueryDocument(&qdrant.Document{Text: query, Model: model}),
		Limit:          qdrant.PtrOf(uint64(10)),
		WithPayload:    qdrant.NewWithPayload(true),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, hit := range hits {
		fmt.Printf("%.9f\t%s\t%s\n", hit.Score, hit.Id.GetUuid(), hit.Payload["title"].GetStringValue())
	}
}

// port returns QDRANT_GRPC_PORT, or the usual one.
func port() int {
	number := 6334
	if value := os.Getenv("QDRANT_GRPC_PORT"); value != "" {
		if _, err := fmt.Sscan(value, &number); err != nil {
			log.Fatalf("QDRANT_GRPC_PORT: %v", err)
		}
	}
	return number
}
