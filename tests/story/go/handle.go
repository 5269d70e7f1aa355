package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

func handle(record *kgo.Record) error {
	var told struct{ Fails int }
	if err := json.Unmarshal(record.Value, &told); err != nil {
		return err
	}
	attempt := 0
	for _, header := range record.Headers {
		if header.Key == "retry-attempt" {
			attempt, _ = strconv.Atoi(string(header.Value))
		}
	}
	if attempt < told.Fails {
		return fmt.Errorf("attempt %d of %d", attempt, told.Fails)
	}
	return nil
}
