// Searches a CARE vector by text. The server asks `care serve`, because its inference.address says so.
//
//	go run . COLLECTION VECTOR MODEL QUERY
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/qdrant/go-client/qdrant"
)

func main() {
	collection, vector, model, query := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	port, err := strconv.Atoi(cmp.Or(os.Getenv("QDRANT_GRPC_PORT"), "6334"))
	if err != nil {
		log.Fatalf("QDRANT_GRPC_PORT: %v", err)
	}
	client, err := qdrant.NewClient(&qdrant.Config{Host: "localhost", Port: port})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	// A long document has several points. One group is one document, by its best point.
	groups, err := client.QueryGroups(context.Background(), &qdrant.QueryPointGroups{
		CollectionName: collection,
		Using:          &vector,
		Query:          qdrant.NewQueryDocument(&qdrant.Document{Text: query, Model: model}),
		GroupBy:        "doc_id",
		GroupSize:      qdrant.PtrOf(uint64(1)),
		Limit:          qdrant.PtrOf(uint64(10)),
		WithPayload:    qdrant.NewWithPayload(true),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, group := range groups {
		hit := group.Hits[0]
		fmt.Printf("%.9f\t%s\t%s\t%s\n", hit.Score, hit.Payload["doc_id"].GetStringValue(),
			hit.Payload["title"].GetStringValue(), hit.Payload["text"].GetStringValue())
	}
}
