// A plain Arrow Flight client of a Lowmark cluster, with TLS and a token, and no line of Lowmark.
//
//	go run . -node n1.example:6570 -ca ca.pem -token-file admin.token list
//	go run . -node n1.example:6570 -ca ca.pem -token-file admin.token read orders
//	go run . -node n1.example:6570 -ca ca.pem -token-file admin.token append orders 1000000
//
// The table of `append` has the columns id (int64) and status (string). An error is printed with
// gRPC's code; docs/guide/flight.md says which codes there are.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// batchRows is how many rows are stored together: each batch is answered when it is durable.
const batchRows = 100_000

// bearer shows the token with each call, and only over TLS.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if token == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

func connect(node, ca, tokenFile string) (flight.Client, error) {
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", ca)
	}
	token := ""
	if tokenFile != "" {
		text, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		token = strings.TrimSpace(string(text))
	}
	transport := credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})
	return flight.NewClientWithMiddleware(
		node, nil, nil,
		grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(bearer(token)),
	)
}

func path(table string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{
		Type: flight.DescriptorPATH, Path: strings.Split(table, "."),
	}
}

// list prints the name of each table, and how many partitions it has.
func list(ctx context.Context, client flight.Client) error {
	stream, err := client.ListFlights(ctx, &flight.Criteria{})
	if err != nil {
		return err
	}
	for {
		info, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(info.FlightDescriptor.Path, "."), len(info.Endpoint))
	}
}

// read counts the rows of a table, all partitions at once, as of the moment of the FlightInfo.
func read(ctx context.Context, client flight.Client, table string) error {
	info, err := client.GetFlightInfo(ctx, path(table))
	if err != nil {
		return err
	}
	counts := make([]int64, len(info.Endpoint))
	failed := make([]error, len(info.Endpoint))
	var all sync.WaitGroup
	for i, endpoint := range info.Endpoint {
		all.Go(func() { counts[i], failed[i] = readPart(ctx, client, endpoint.Ticket) })
	}
	all.Wait()
	total := int64(0)
	for _, count := range counts {
		total += count
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	fmt.Println(total, "rows in", len(counts), "partitions")
	return nil
}

func readPart(ctx context.Context, client flight.Client, ticket *flight.Ticket) (int64, error) {
	stream, err := client.DoGet(ctx, ticket)
	if err != nil {
		return 0, err
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		return 0, err
	}
	defer reader.Release()
	rows := int64(0)
	for reader.Next() {
		rows += reader.RecordBatch().NumRows()
	}
	return rows, reader.Err()
}

// stored is what the server says of a batch; its parts have offsets and times.
type stored struct {
	Rows int64 `json:"rows"`
}

// add appends rows with the ids 0, 1, 2 and so on, in batches, and waits for the answer to each.
func add(ctx context.Context, client flight.Client, table string, rows int64) error {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "status", Type: arrow.BinaryTypes.String},
	}, nil)
	stream, err := client.DoPut(ctx)
	if err != nil {
		return err
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(path(table))
	acknowledged := int64(0)
	for first := int64(0); first < rows; first += batchRows {
		batch := made(schema, first, min(rows, first+batchRows))
		sent := writer.Write(batch)
		batch.Release()
		// If the server has ended the stream, its answer says why, and the write only that it has.
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		if sent != nil {
			return sent
		}
		var one stored
		if err := json.Unmarshal(answer.AppMetadata, &one); err != nil {
			return err
		}
		acknowledged += one.Rows
	}
	if err := writer.Close(); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	fmt.Println(acknowledged, "rows are durable")
	return nil
}

func made(schema *arrow.Schema, first, end int64) arrow.RecordBatch {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer builder.Release()
	ids, states := builder.Field(0).(*array.Int64Builder), builder.Field(1).(*array.StringBuilder)
	for id := first; id < end; id++ {
		ids.Append(id)
		states.Append("new")
	}
	return builder.NewRecordBatch()
}

func run(words []string, node, ca, tokenFile string) error {
	client, err := connect(node, ca, tokenFile)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	switch {
	case len(words) == 1 && words[0] == "list":
		return list(ctx, client)
	case len(words) == 2 && words[0] == "read":
		return read(ctx, client, words[1])
	case len(words) == 3 && words[0] == "append":
		rows, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			return err
		}
		return add(ctx, client, words[1], rows)
	}
	return errors.New("write list, read TABLE, or append TABLE ROWS")
}

func main() {
	node := flag.String("node", "127.0.0.1:6570", "a node's address")
	ca := flag.String("ca", "ca.pem", "the authority that signed its certificate")
	tokenFile := flag.String("token-file", "", "a file with the token")
	flag.Parse()
	if err := run(flag.Args(), *node, *ca, *tokenFile); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", status.Code(err), err)
		os.Exit(1)
	}
}
